"""Human ratings, one file for each release."""
