"""What people are asked about images, and what they answered."""
