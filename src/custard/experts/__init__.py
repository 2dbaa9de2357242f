"""Experts on the base MDP: they act well and say what each action is worth."""
