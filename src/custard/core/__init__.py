"""What everything stands on: errors, files, seeds, threads; features, actions, spaces; finite MDPs."""
