"""Search settings, prove the winner, keep it as a profile, hand it on."""
