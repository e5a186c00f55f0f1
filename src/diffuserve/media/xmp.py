"""XMP packets with a single property of ours, the generation parameters."""

import re
from xml.sax.saxutils import escape, unescape

_PACKET = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description rdf:about="" xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmlns:diffuserve="urn:diffuserve:1">
<xmp:CreatorTool>{tool}</xmp:CreatorTool>
<diffuserve:parameters>{text}</diffuserve:parameters>
</rdf:Description>
</rdf:RDF>
</x:xmpmeta>
<?xpacket end="r"?>"""
_PARAMETERS = re.compile(rb"<diffuserve:parameters>(.*?)</diffuserve:parameters>", re.DOTALL)


def write_packet(text: str, tool: str) -> bytes:
    """Return a packet with `text` and the name of the tool that wrote it.

    `text` holds no control characters, which XML 1.0 cannot represent; JSON escapes them.
    """
    return _PACKET.format(text=escape(text), tool=escape(tool)).encode()


def read_packet(packet: bytes) -> str | None:
    """Return the text of a packet; `None` if it has none.

    No XML parser is used: files are untrusted, and nested entities can exhaust memory.
    """
    found = _PARAMETERS.search(packet)
    return None if found is None else unescape(found[1].decode())
