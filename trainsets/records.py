"""The files of an evaluation: a record for every case, from which it can go on, and one summary of all programs.

`<name>.jsonl` holds the records of the program `<name>`, one a line in the order of the cases. While the evaluation
runs they are in `<name>.jsonl.part`, in the order in which the cases finished. With `--repeat N` the further runs of a
program are in `<name>.repeat-2.jsonl` and so on. A record:

- `key`: a digest of all that the result depends on; a repeated command takes a record only with the same key.
- `id`, `kind`, `lang`, `question`, `gold` (accepted answers), `gold_ids`, `answerable`: of the case.
- `outcome`: one of `outcomes.OUTCOMES`; `rank` (of evidence that ranked too low) and `detail` (which evidence, or
  what was raised) explain it.
- `error`: null, or why the case has no scores: what was raised, or `timed out after N s`.
- `seconds`: wall time of the run.
- `scores`: metric → 0..1 (`plan_size` and `rounds` are counts), null where the case or the prediction leaves nothing
  to measure; `{}` after an error. `combined` is the one that tables call score.
- `grading_error`: null, or why the grader gave no grade.
- `prediction`: null if there is none, else as `programs.record.to_json` writes it.

`summary.json` ties the records of one command together:

- `format`: 1. `created`: UTC. `n_cases`, `cases` (where they came from, as given), `split`, `lm`, `grader` (label or
  null), `repeat`, `index`: the facts of the index.
- `programs`: one object a program, in the order given: `name` (of its files), `spec` (as given), `records` (file
  name), `summary` (the fields of `results.Summary`), `score_interval` (`value`, `low`, `high`, `n`, or null),
  `slices` (a list with the fields of `results.Slice`: `by` is `kind` or `lang`), and `stability` (null without
  `--repeat`, else the fields of `comparison.Stability`).
- `comparisons`: each further program against the first, then each program against `--baseline`; the fields of
  `comparison.Comparison`: `name` (the program), `baseline` (what it is compared with: the name of another program, or
  the file), `n` (cases scored in both), `n_left_out` (errored in either, or in one of the two only), `interval` (mean
  of program − baseline; null if `n` is 0), `mcnemar` (`only_first`: right in the baseline only, `only_second`: right
  in the program only, `p_value`), `transitions` (`before`, `after`, `n`, `ids`, with those that stayed; most frequent
  first), and `slices` (`by`, `value`, `n`, `baseline`, `program`, `difference`, `interval`).
"""
