"""SPACE: structured compression and sharing of representational space (Saha, Garg, Ankit, Roy 2020)."""
