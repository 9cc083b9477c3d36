"""What the system says about itself, made from the facts that the rooms below give out.

Owns: one catalogue of metrics, from which come the metrics in the code, their page in docs/, the
alert rules with their tests, and the dashboards.
May not know: routes, sockets, how a request is served. Nothing below `server` knows this room.
Read next: `catalogue.py`.

| file | what stands there |
|---|---|
| `entry.py` `labels.py` `catalogue.py` | the form of an entry; words; all entries |
| `instruments.py` | an entry becomes a metric of the library: the only place that makes one |
| `metrics.py` `log_events.py` | what is counted |
| `loaded_models.py` `gpus.py` `disk.py` | what is asked at a scrape |
| `aliases.py` | the same numbers under vLLM's names |
| `alert_settings.py` `alerts.py` `alert_cases.py` `proving.py` | limits, rules, series, the trial |
| `routing.py` `received.py` `asking.py` `review.py` | who is told of an alert; what came of it |
| `snapshot.py` `request_log.py` `gathering.py` `evidence.py` | what is known of a server |
| `causes.py` `cause_texts.py` `diagnosis.py` | what is likely wrong with it |
| `dashboards.py` `metrics_page.py` `exports.py` `yaml_text.py` | the files made of all that |
| `recorder.py` `records.py` `step_ring.py` | the flight recorder: what happened to each request |
| `record_views.py` `record_trace.py` `kept_failures.py` | a record told, drawn, kept in a file |

What else watches comes into this room too, as the ranking of causes. A fact is measured once,
below; here it is only given a form.
"""
