"""What the system says about itself, made from the facts that the rooms below give out.

Owns: one catalogue of metrics, from which come the metrics in the code, their page in docs/, the
alert rules with their tests, and the dashboards.
May not know: routes, sockets, how a request is served. Nothing below `server` knows this room.
Read next: `catalogue.py`.

| file | what stands there |
|---|---|
| `entry.py` `labels.py` `catalogue*.py` | the form of an entry; words; all entries |
| `instruments.py` | an entry becomes a metric of the library: the only place that makes one |
| `metrics.py` `step_counts.py` `log_events.py` | what is counted |
| `loaded_models.py` `queue_ages.py` `gpus.py` `disk.py` | what is asked at a scrape |
| `aliases.py` | the same numbers under vLLM's names |
| `alert_settings.py` `alerts.py` `alert_cases.py` `proving.py` | limits, rules, series, the trial |
| `routing.py` `received.py` `asking.py` `review.py` | who is told of an alert; what came of it |
| `probes.py` | what is no traffic |
| `gathering.py` `snapshot.py` `recorded.py` `request_log.py` | what is asked of a server |
| `evidence.py` | what is known of it then |
| `causes.py` `cause_texts.py` `diagnosis.py` | what is likely wrong with it |
| `dashboards.py` `metrics_page.py` `exports.py` `yaml_text.py` | the files made of all that |
| `recorder.py` `records.py` `step_ring.py` | the flight recorder: what happened to each request |
| `record_views.py` `record_trace.py` `kept_failures.py` | a record told, drawn, kept in a file |
| `live.py` `queue_view.py` `firing.py` | the live feed, the queue, the alerts of a day |
| `recording.py` | the feed in a file |
| `tracing.py` `otel_metrics.py` | spans and metrics by OpenTelemetry |
| `trace_context.py` | whose trace a request belongs to |
| `log_lines.py` `log_query.py` | a log's lines, and its errors counted |
| `environment.py` | what a report of a fault says of the machine |

What else watches comes into this room too, as the ranking of causes. A fact is measured once,
below; here it is only given a form.
"""
