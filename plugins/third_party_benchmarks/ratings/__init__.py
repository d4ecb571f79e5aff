"""Human ratings, one file per release."""
