"""From what a client wrote to what the model reads."""

import re
import unicodedata

# Characters of no width, and controls that are no white space. Joiners and variation selectors go too:
# text encoders know an emoji's parts better than its joined form. Arabic's and others' number signs are
# format characters as well, but they are seen, and stay.
_UNSEEN = re.compile(
    "[\u0000-\u0008\u000e-\u001b\u007f-\u0084\u0086-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff0-\ufffb"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def clean(prompt: str) -> str:
    """The prompt in NFKC, without characters that cannot be seen, each run of white space one space.

    Cleaning what is clean changes nothing. The result may be empty, or up to 18 times as long as the
    prompt: the caller refuses both. The time grows with the square of the length where accents are
    piled up on one letter, so a prompt is best bounded before it comes here.
    """
    text = _UNSEEN.sub("", unicodedata.normalize("NFKC", prompt))
    # Once more: a letter and an accent that something unseen kept apart are one letter now.
    return " ".join(unicodedata.normalize("NFKC", text).split())
