"""Many pictures, resumable: batches, Ray, the file of records, text files."""
