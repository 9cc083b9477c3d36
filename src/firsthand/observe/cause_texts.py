"""The causes that a doctor knows, in words: English and Chinese.

Owns: titles, remedies, the command to go on with; which entry of the handbook has the rest.
May not know: how a cause is recognised (`causes.py`).
Read next: `causes.py`; docs/handbook, whose lists of causes have the same titles.
"""

from __future__ import annotations

from firsthand.values import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """`entry` is the page of the handbook. `command`: what to run next."""

    entry: str
    title: str
    title_zh: str
    remedy: str
    remedy_zh: str
    command: str

    def said(self, language: str) -> tuple[str, str]:
        """Title and remedy."""
        if language == "zh":
            return self.title_zh, self.remedy_zh
        return self.title, self.remedy


READY = "curl -sS 'http://127.0.0.1:8000/readyz?verbose'"
ENDS = "journalctl -u firsthand -n 50 -o cat"
TOP = "ps -eo pid,stat,wchan:20,pcpu,rss,args --sort -pcpu | head"

TEXTS = {
    "process-gone": Text(
        *("FH-001", "The process has ended", "进程已结束"),
        "Start it again; its last lines say why it ended. For memory: a smaller --memory-limit.",
        "重新启动；最后几行日志说明了原因。若因内存不足：减小 --memory-limit。",
        ENDS,
    ),
    "process-hangs": Text(
        *("FH-001", "The process is there, and does nothing", "进程存在，但没有反应"),
        "It is stopped, or waits for a disk or for swap: if it does not come back, restart it.",
        "进程被暂停，或在等待磁盘、换页：若不恢复，请重启。",
        TOP,
    ),
    "check-fails": Text(
        *("FH-002", "A check of readiness fails", "就绪检查失败"),
        "The check's own words say which part: an engine, the queue, memory, the golden tokens.",
        "检查项会说明是哪一部分：引擎、队列、内存或自检 token。",
        READY,
    ),
    "weights-wrong": Text(
        *("FH-003", "The weights in memory are not those on record", "内存中的权重与记录不一致"),
        "Restart the server, so that they are read and compared anew; if it comes back, test the "
        "machine's memory.",
        "重启服务，重新读取并校验权重；若再次出现，请检测机器内存。",
        "firsthand verify MODEL",
    ),
    "errors-by-hour": Text(
        *("FH-004", "Errors come at set hours", "错误集中在固定时段"),
        "Look at what is sent at that hour, and at what else runs then: a job, a backup, a peak.",
        "检查该时段发来的数据，以及同时运行的任务：定时作业、备份、高峰。",
        "firsthand data check FILE",
    ),
    "errors": Text(
        *("FH-004", "Answers are errors of the server", "服务端返回错误"),
        "The reasons beside the statuses say which; each has an entry of its own.",
        "状态码旁的原因指明了问题，各有对应的手册条目。",
        READY,
    ),
    "slow-steps": Text(
        *("FH-005", "Steps of the engine are slow", "引擎的每一步变慢"),
        "Find who takes the processors or the disk; give the server its threads and quota back.",
        "找出占用处理器或磁盘的进程；恢复服务应有的线程数与配额。",
        TOP,
    ),
    "way-slow": Text(
        *("FH-005", "The way to the engine is slow", "到引擎的路径变慢"),
        "Nobody waits in the engine's queue: the server's own process is starved, or stopped at "
        "times. Give it a processor.",
        "引擎队列中无人等待：服务进程本身得不到处理器，或时而暂停。请为其保留处理器。",
        TOP,
    ),
    "prompts-longer": Text(
        *("FH-005", "Prompts have grown", "提示变长"),
        "Bound them, or let them begin alike, so that the prefix cache finds them.",
        "限制长度，或让其开头一致以命中前缀缓存。",
        "firsthand bench latency MODEL",
    ),
    "answers-longer": Text(
        *("FH-005", "Answers have grown", "应答变长"),
        "Bound them with max_tokens.",
        "用 max_tokens 加以限制。",
        "firsthand bench latency MODEL",
    ),
    "latency": Text(
        *("FH-005", "Answers are slow", "应答缓慢"),
        "The phase that takes the time decides where to look.",
        "耗时最长的阶段决定排查方向。",
        "firsthand bench latency MODEL",
    ),
    "queue-long": Text(
        *("FH-006", "More is asked than the engine computes", "请求多于引擎的处理能力"),
        "Add a replica, bound answers, or run with --profile throughput.",
        "增加副本、限制应答长度，或使用 --profile throughput。",
        "firsthand bench throughput MODEL",
    ),
    "door-shut": Text(
        *("FH-007", "The queue is full, and more comes", "队列已满，请求仍在到来"),
        "Clients should wait for Retry-After; limit the loudest key; add a replica.",
        "客户端应遵守 Retry-After；限制请求最多的密钥；增加副本。",
        READY,
    ),
    "cache-full": Text(
        *("FH-008", "The KV cache is full", "KV 缓存已满"),
        "Raise --memory-limit, or lower --max-num-seqs, --max-model-len; or --kv-cache-dtype int8.",
        "增大 --memory-limit，或减小 --max-num-seqs、--max-model-len；或用 --kv-cache-dtype int8。",
        "firsthand plan MODEL",
    ),
    "memory-high": Text(
        *("FH-009", "The machine's memory is nearly used up", "机器内存将耗尽"),
        "See who has it; start with a smaller --memory-limit.",
        "查看占用者；用更小的 --memory-limit 启动。",
        "ps -eo pid,rss,args --sort -rss | head",
    ),
    "engine-grows": Text(
        *("FH-009", "The engine takes more and more memory", "引擎占用的内存不断增长"),
        "The cache's pages come with use, up to its limit. What grows beyond that is a leak: "
        "restart, and report it with the two numbers.",
        "缓存页随使用而增加，直至上限。超出即为泄漏：重启，并附两个数值上报。",
        "firsthand plan MODEL",
    ),
    "server-grows": Text(
        *(
            "FH-009",
            "The server's process takes more and more memory",
            "服务进程占用的内存不断增长",
        ),
        "Kept replies are bounded by --idempotency-memory, connections by --max-connections; "
        "beyond that it is a leak: restart, and report it.",
        "缓存的回复受 --idempotency-memory 限制，连接受 --max-connections 限制；"
        "超出即为泄漏：重启并上报。",
        "firsthand config show",
    ),
    "engine-stalls": Text(
        *("FH-010", "Requests are open, and no step is made", "有未完成的请求，但没有推进"),
        "It is stopped, or waits for a disk. After a minute the server replaces it by itself.",
        "引擎被暂停或在等待磁盘。一分钟后服务会自动替换它。",
        TOP,
    ),
    "engine-lost": Text(
        *("FH-011", "An engine ended, and was replaced", "引擎已结束并被替换"),
        "The log says how: by a signal (SIGKILL: often the system, for memory), or by a fault.",
        "日志说明了方式：信号（SIGKILL 多为系统因内存不足）或故障。",
        ENDS,
    ),
    "steps-fail": Text(
        *("FH-012", "Steps of the engine fail", "引擎的计算步骤失败"),
        "The log has the traceback. The same one at each request: take the last release back.",
        "日志中有调用栈。若每个请求都相同：回滚到上一个版本。",
        ENDS,
    ),
    "log-lines": Text(
        *("FH-013", "Errors stand in the log", "日志中有错误"),
        "Read them: each names its event, and a request's id where it is about one.",
        "阅读这些行：每行都有事件名，与请求有关的带有请求编号。",
        ENDS,
    ),
    "disk-full": Text(
        *("FH-014", "The disk is full", "磁盘已满"),
        "Make room: packed models come back by themselves, so `firsthand rm` or their folder.",
        "腾出空间：打包后的模型可自动重建，可用 `firsthand rm` 删除。",
        "df -h; firsthand list",
    ),
    "log-lost": Text(
        *("FH-014", "The log cannot be written", "日志无法写入"),
        "Its disk is full, or a limit of the process stops it. Answers go on meanwhile.",
        "其磁盘已满，或受进程限制。期间服务照常应答。",
        "df -h; cat /proc/$(pgrep -of 'firsthand serve')/limits",
    ),
    "clients-stall": Text(
        *("FH-015", "Clients do not read their answers", "客户端不读取应答"),
        "They were cut, and what they held is free. Find them by their key in the log; a proxy "
        "that buffers nothing looks the same.",
        "连接已被切断，资源已释放。可在日志中按密钥查找；不做缓冲的代理也会如此。",
        ENDS,
    ),
    "canary-worse": Text(
        *("FH-016", "A canary was worse than what is served", "金丝雀版本不如现行版本"),
        "It has no share any more, and nobody lost a request for it. Its history says why; mend "
        "it and stage it anew.",
        "它已不再接收流量，也没有请求因此丢失。原因在版本历史中；修复后重新登记。",
        "firsthand release history STORE",
    ),
    "drill-old": Text(
        *("FH-016", "The way back has long not been tried", "很久没有演练过回滚"),
        "Drill it now, beside the running server: a rollback that was never tried is a hope.",
        "现在就在运行中的服务旁演练一次：没有演练过的回滚只是愿望。",
        "firsthand release drill STORE current",
    ),
    "unknown": Text(
        *("", "Unknown: no entry explains this", "未知：没有条目能解释"),
        "Keep the evidence: the numbers here, the log of that time, the failed requests' ids.",
        "保留证据：此处的数值、当时的日志、失败请求的编号。",
        ENDS,
    ),
}
