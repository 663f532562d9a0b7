"""Metadata of pictures: XMP, read and changed, and IPTC, read (extra `xmp`)."""
