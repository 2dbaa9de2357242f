"""Run methods and experiments. In reading order:

methods        the methods by name; `settings_list` lists a method's settings
learn          `custard.learn`: one run; `run` is its directory, `progress` its display, `time_left` its estimate,
               `callbacks` and `loggers` are called meanwhile, `multi_seed` runs several seeds, `keywords` types its
               keywords
trials         a trial: learn, evaluate, one row; `grid` makes many
sweep          runs the trials whose row is not stored yet; `engines` is where they run, `trial_file` where rows are
               stored, `trial_table` what a terminal shows meanwhile
summary        rows by group: means, spread, failures; `aggregate` over tasks, with intervals
frontier       the best tree for each number of leaves; `frontier_plot` draws return against size
paper          the paper's experiments; `paper_page` and `paper_figures` show them
plotting       what the plots share
speed          how fast a tree decides
"""
