"""Load for servers that draw, and what it measures: `diffuserve bench`.

It knows servers by their HTTP alone, ours as others'.
"""
