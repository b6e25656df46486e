"""Tables 2 and 3: RFAM against RFM on tables."""
