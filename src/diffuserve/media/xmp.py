"""The one property that we keep in an XMP packet."""

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
    """`text` must hold no control characters, which XML does not know; JSON holds none."""
    return _PACKET.format(text=escape(text), tool=escape(tool)).encode()


def read_packet(packet: bytes) -> str | None:
    """Without an XML parser: files come from anywhere, and entities can be bombs."""
    found = _PARAMETERS.search(packet)
    return None if found is None else unescape(found[1].decode())
