"""XMP packets."""

import json
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.media.xmp import read_packet, write_packet

NAMESPACES = {"diffuserve": "urn:diffuserve:1", "xmp": "http://ns.adobe.com/xap/1.0/"}


@given(st.dictionaries(st.text(), st.text() | st.integers()))
def test_json_is_read_back(parameters: dict[str, str | int]) -> None:
    text = json.dumps(parameters)
    assert read_packet(write_packet(text, "diffuserve 1")) == text


def test_a_packet_is_xml_with_the_text_and_the_tool() -> None:
    packet = write_packet('{"prompt": "<a> & \\"b\\" ]]>"}', "a <tool>")
    root = ElementTree.fromstring(packet.decode().replace('<?xpacket end="r"?>', ""))
    assert (
        root.findtext(".//diffuserve:parameters", namespaces=NAMESPACES) == '{"prompt": "<a> & \\"b\\" ]]>"}'
    )
    assert root.findtext(".//xmp:CreatorTool", namespaces=NAMESPACES) == "a <tool>"


@pytest.mark.parametrize("packet", [b"", b"<x:xmpmeta/>", b"<diffuserve:parameters>", b"\xff\x00"])
def test_other_packets_have_no_text(packet: bytes) -> None:
    assert read_packet(packet) is None


def test_entities_are_not_expanded() -> None:
    packet = b'<!DOCTYPE x [<!ENTITY e "eeee">]><diffuserve:parameters>&e;</diffuserve:parameters>'
    assert read_packet(packet) == "&e;"
