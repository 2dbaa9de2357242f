"""The rivals: VIPER and its experts."""
