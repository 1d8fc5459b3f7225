"""The distribution: built, looked into, installed and tried, and released up to the upload."""
