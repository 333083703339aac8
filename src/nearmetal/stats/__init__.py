"""Statistics: pure functions on arrays, no input or output, no global state, randomness only from a given generator.

Within a trial: `summarize`, `order`, `ecdf`, `tail_curve`. Over blocks: `estimate_level` of one path, `compare`,
`estimate_ratio`, `correct_family`, `noise_floor`. Between two runs: `difference`, `judge_family`; over many:
`find_changes`. While measuring: `StoppingPlan`, `look`. The reasons are in docs/explanation/statistics.md.
"""
