"""The wordings of released judges, read from checkouts of their repositories."""
