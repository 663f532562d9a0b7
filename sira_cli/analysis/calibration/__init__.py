"""Calibrations, measured once per model: MaskCD's image heads, ICT's and VTI's directions, and a K for SIRA."""
