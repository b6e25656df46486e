"""What records show: rows, claims and findings that items are made of."""
