"""The page of `sira report`: one HTML file to look at traces."""
