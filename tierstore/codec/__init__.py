"""Codecs: how a block's bytes become the bytes on disk."""
