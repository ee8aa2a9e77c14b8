"""Plans, runs and differences as one HTML page with pictures, from the same data as the text views."""
