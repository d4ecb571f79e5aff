"""How networks are trained: the one loop of optimiser steps, and what CLIP-FlanT5 is taught by and saved as."""
