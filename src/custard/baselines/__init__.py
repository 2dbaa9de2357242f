"""Tree learners that the paper compares with: VIPER (`viper`), and the same with an exact expert (`viper_bi`)."""
