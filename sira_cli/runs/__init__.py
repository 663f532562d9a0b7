"""Many pictures, resumable: batches, Ray, the file of records, tables, text files."""
