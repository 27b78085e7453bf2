"""Terminal sessions: commands and what they print, the host and the user in the prompt."""

# fmt: off

from collections.abc import Callable

from training.office.document import Document
from training.office.registry import kind
from training.office.screen import Column, Panel, Screen, Text
from training.office.windows import clock, window
from training.pages import values as v
from training.pages.values import Rng

Lines = list[str]
# what a command prints, and questions with their answers and the numbers of the lines they rest on
Session = tuple[str, Lines, list[tuple[tuple[str, ...], str | None, list[int]]]]
ENDINGS = ("py", "c", "rs", "md", "txt", "csv", "log", "json", "sh", "tar.gz", "pdf", "png", "yml", "sql")
HOSTS = ("server", "web", "db", "node", "pi", "laptop", "build", "mail", "nas", "gateway", "desk", "lab")


def file_name(r: Rng) -> str:
    return f"{v.word(r).lower()}{r.pick(('', '', '_old', '-2', '_final', '3'))}.{r.pick(ENDINGS)}"


def files(r: Rng, count: int) -> list[str]:
    """Different names, none of which contains another."""
    out: list[str] = []
    while len(out) < count:
        name = file_name(r)
        if not any(name in other or other in name for other in out):
            out.append(name)
    return out


def table(rows: list[list[str]], right: str) -> Lines:
    """Rows in columns of letters of one width; ``right`` names the columns at the right, as digits."""
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [" ".join(c.rjust(w) if str(n) in right else c.ljust(w) for n, (c, w) in enumerate(zip(row, wide, strict=True))).rstrip() for row in rows]


def stamp(r: Rng) -> str:
    return f"{r.pick(v.MONTHS)[:3]} {r.randint(1, 28):2d} {clock(r)}"


def disk(r: Rng) -> Session:
    """df: file systems."""
    mounts = r.sample(("/", "/home", "/var", "/boot", "/data", "/tmp", "/mnt/backup", "/srv", "/opt"), r.randint(2, 5))
    rows, shown = [["Filesystem", "Size", "Used", "Avail", "Use%", "Mounted on"]], []
    shares = r.sample(range(3, 100), len(mounts))
    for n, (mount, share) in enumerate(zip(mounts, shares, strict=True)):
        size = r.randint(20, 980)
        used = max(round(size * share / 100), 1)
        rows.append([f"/dev/{r.pick(('sda', 'nvme0n1p', 'vdb', 'sdb'))}{n + 1}", f"{size}G", f"{used}G", f"{size - used}G", f"{share}%", mount])
        shown.append((mount, rows[-1]))
    asks = []
    for n, (mount, row) in enumerate(shown, 1):
        asks += [
            ((f"How full is {mount}?", f"What is the use of {mount} in percent?", f"How many percent of {mount} are used?", f"What percentage of {mount} is taken?"), row[4], [0, n]), ((f"How much space is free on {mount}?", f"How much is still available on {mount}?", f"How much room is left on {mount}?", f"Free space of {mount}?"), row[3], [0, n]),
            ((f"How large is {mount}?", f"What is the size of {mount}?", f"How big is the file system {mount}?"), row[1], [0, n]), ((f"On which device is {mount}?", f"Which device is mounted on {mount}?", f"What is mounted on {mount}?"), row[0], [0, n]),
        ]
    every = list(range(len(rows)))
    asks += [
        (("Which file system is the fullest?", "Which mount point is nearly full?", "What has the highest use?", "Where is the least space left in percent?"), mounts[shares.index(max(shares))], every), (("Which file system is the emptiest?", "Which mount point is used least in percent?"), mounts[shares.index(min(shares))], every),
        (("How many file systems are listed?", "How many file systems are there?"), str(len(mounts)), every),
    ]
    missing = r.pick([m for m in ("/home", "/var", "/data", "/srv", "/opt", "/scratch") if m not in mounts])
    asks.append(((f"How full is {missing}?", f"How much space is free on {missing}?"), None, []))
    return r.pick(("df -h", "df -h", "df -H")), table(rows, "1234"), asks


def listing(r: Rng) -> Session:
    """ls -l: permissions, owners, sizes, dates."""
    names, owners = files(r, r.randint(3, 8)), [v.first_name(r).lower(), "root", v.first_name(r).lower()]
    sizes = r.sample(range(12, 990000), len(names))
    rows, asks = [], []
    human = r.chance(0.4)
    for name, size in zip(names, sizes, strict=True):
        shown = (f"{size / 1000:.0f}K" if size >= 10000 else f"{size / 1000:.1f}K" if size >= 1000 else str(size)) if human else str(size)
        rows.append([r.pick(("-rw-r--r--", "-rwxr-xr-x", "-rw-------", "-rw-rw-r--")), "1", r.pick(owners), r.pick(("users", "staff", "www", "dev")), shown, stamp(r), name])
    for n, row in enumerate(rows, 1):
        name = row[6]
        asks += [
            ((f"How large is {name}?", f"What is the size of {name}?", f"How big is the file {name}?", f"Size of {name}?"), row[4], [n]), ((f"Who owns {name}?", f"Who is the owner of {name}?", f"To which user does {name} belong?", f"Whose file is {name}?"), row[2], [n]),
            ((f"When was {name} last changed?", f"What is the date of {name}?", f"When was {name} modified?"), " ".join(row[5].split()), [n]), ((f"Which group does {name} belong to?", f"What is the group of {name}?"), row[3], [n]), ((f"What are the permissions of {name}?", f"Which permissions does {name} have?"), row[0], [n]),
        ]
    every = list(range(1, len(rows) + 1))
    shown = [row[4] for row in rows]
    if len(set(shown)) == len(shown):
        asks += [
            (("Which file is the largest?", "What is the largest file?", "Which file takes most space?", "What is the biggest file in the listing?"), names[sizes.index(max(sizes))], every),
            (("Which file is the smallest?", "What is the smallest file?"), names[sizes.index(min(sizes))], every),
        ]
    asks.append((("How many files are listed?", "How many files are there in the folder?", "Count the files."), str(len(names)), every))
    ends = [n.partition(".")[2] for n in names]
    for end in dict.fromkeys(ends):
        if ends.count(end) == 1:
            asks.append(((f"Which file ends in .{end}?", f"What is the name of the .{end} file?", f"Which .{end} file is there?"), names[ends.index(end)], every))
    gone = file_name(r)
    asks.append(((f"How large is {gone}?", f"Who owns {gone}?"), None, []))
    return r.pick(("ls -l", "ls -la", "ll") if not human else ("ls -lh",)), [f"total {sum(sizes) // 1000}", *table(rows, "14")], asks


def sizes_of(r: Rng) -> Session:
    """du: folders and their sizes."""
    names = [n.partition(".")[0] for n in files(r, r.randint(3, 6))]
    amounts = [f"{n}{r.pick('KMG')}" for n in r.sample(range(2, 999), len(names))]
    asks = [((f"How large is {name}?", f"How much space does {name} take?", f"What is the size of {name}?", f"How much does {name} use on disk?"), amount, [n]) for n, (name, amount) in enumerate(zip(names, amounts, strict=True))]
    scale = {"K": 1, "M": 1000, "G": 1000000}
    order = sorted(range(len(names)), key=lambda n: int(amounts[n][:-1]) * scale[amounts[n][-1]])
    every = list(range(len(names)))
    asks += [(("Which folder is the largest?", "What takes most space?", "Which folder needs the most room?"), names[order[-1]], every), (("Which folder is the smallest?", "What takes least space?"), names[order[0]], every)]
    return "du -sh *", table([[a, n] for a, n in zip(amounts, names, strict=True)], ""), asks


ERRORS = (
    ("error: expected ';' before '{w}'", "gcc"), ("error: '{w}' undeclared (first use in this function)", "gcc"), ("fatal error: {w}.h: No such file or directory", "gcc"), ("error: too few arguments to function '{w}'", "gcc"), ("error: cannot find value `{w}` in this scope", "cargo"),
    ("error: conflicting types for '{w}'", "gcc"), ("error: mismatched types in call of `{w}`", "cargo"),
)


def build(r: Rng) -> Session:
    """A build that fails, or one with warnings."""
    source = [f"src/{v.word(r).lower()}.{r.pick(('c', 'cpp', 'rs'))}" for _ in range(3)]
    line, column, w = r.randint(3, 990), r.randint(1, 60), v.word(r).lower()
    text, _ = r.pick(ERRORS)
    text, target, spent = text.format(w=w), v.word(r).lower(), f"{r.randint(0, 90)}.{r.randint(0, 99):02d}s"
    warnings = r.randint(2, 19)
    share = r.randint(5, 40)
    tool = r.pick(("make", "make -j4", "ninja", "make all", "cmake --build ."))
    lines = [f"[ {share}%] Building {source[0]}", f"[ {share + r.randint(5, 40)}%] Building {source[1]}"]
    asks: list = []
    if r.chance(0.75):
        lines += [f"{source[1]}:{line}:{column}: {text}", f"{warnings} warnings and 1 error generated.", f"make: *** [{target}] Error {r.randint(1, 3)}"]
        message = text.partition("error: ")[2]
        asks = [
            (("In which file is the error?", "Which file does not compile?", "Which source file has the error?", "Where does the build fail?"), source[1], [2]), (("In which line is the error?", "On what line does the compiler stop?", "What is the line number of the error?"), str(line), [2]),
            (("Why does the build fail?", "What does the compiler complain about?", "What is the compiler's error message?", "What is wrong in the source code?"), message, [2]), (("How many warnings are there?", "How many warnings did the compiler give?", "What number of warnings were generated?"), str(warnings), [3]),
            (("Which target failed?", "Which target could not be made?"), target, [4]), (("Did the build succeed or fail?", "Was the build a success or did it fail?"), "fail", [2, 4]),
        ]
        asks.append((("How long did the build take?", "How many seconds did it take to build?"), None, []))
    else:
        lines += [f"[100%] Linking {target}", f"Finished with {warnings} warnings in {spent}"]
        asks = [
            (("How long did the build take?", "How much time did the build need?", "In how many seconds was it built?"), spent, [3]), (("How many warnings are there?", "How many warnings did the build give?"), str(warnings), [3]), (("What was built?", "What is linked at the end?", "What is the name of the program that was built?"), target, [2]),
        ]
        asks.append((("In which line is the error?", "In which file is the error?"), None, []))
    return tool, lines, asks


def tests(r: Rng) -> Session:
    """A run of tests with a failure or without."""
    names = [f"test_{v.word(r).lower()}" for _ in range(4)]
    counts = [r.randint(2, 60) for _ in names]
    total, failed = sum(counts), r.randint(0, 1)
    spent = f"{r.randint(0, 300)}.{r.randint(0, 99):02d}s"
    lines = [f"{name}.py {'.' * min(count, 12)}{'F' if failed and n == 1 else '.'} [{100 * sum(counts[: n + 1]) // total}%]" for n, (name, count) in enumerate(zip(names, counts, strict=True))]
    case = f"{names[1]}.py::test_{v.word(r).lower()}"
    a, b = r.randint(1, 99), r.randint(100, 400)
    if failed:
        lines += [f"FAILED {case}", f"E   assert {a} == {b}"]
    skipped = r.randint(1, 14)
    lines.append(f"=== {'1 failed, ' if failed else ''}{total - failed} passed, {skipped} skipped in {spent} ===")
    end = len(lines) - 1
    asks = [
        (("How many tests passed?", "How many of the tests succeeded?", "What number of tests passed?"), str(total - failed), [end]), (("How many tests were skipped?", "How many tests were left out?"), str(skipped), [end]), (("How long did the tests take?", "How long did the test run need?", "In what time did the tests run?"), spent, [end]),
    ]
    if failed:
        asks += [(("Which test failed?", "What is the name of the test that fails?", "Which test is broken?"), case, [4]), (("What does the failing assertion say?", "Which assertion fails?"), f"assert {a} == {b}", [5]), (("How many tests failed?", "How many failures are there?"), "1", [end])]
    else:
        asks.append((("Which test failed?", "What is the name of the test that fails?"), None, []))
    return r.pick(("pytest", "pytest -q", "python -m pytest")), lines, asks


def git(r: Rng) -> Session:
    """git status or git log."""
    branch = f"{r.pick(('feature', 'fix', 'release', 'dev'))}/{v.word(r).lower()}"
    if r.chance(0.5):
        count, names = r.randint(2, 30), files(r, r.randint(2, 4))
        lines = [f"On branch {branch}", f"Your branch is ahead of 'origin/{branch}' by {count} commits.", "Changes not staged for commit:", *(f"  modified:   {n}" for n in names[:-1]), "Untracked files:", f"  {names[-1]}"]
        asks = [
            (("Which branch is it?", "On which branch am I?", "What is the current branch?", "Which branch is checked out?"), branch, [0]), (("By how many commits is the branch ahead?", "How many commits have not been pushed?", "How many commits ahead of origin is it?"), str(count), [1]),
            (("Which files were modified?", "Which files have changed?", "What has been modified?"), " and ".join(names[:-1]) if len(names) < 4 else ", ".join(names[:-1]), list(range(2, len(lines) - 1))), (("Which file is untracked?", "What is not tracked by git?", "Which file is new and not added yet?"), names[-1], [len(lines) - 2, len(lines) - 1]),
            (("Who made the last commit?", "What is the message of the last commit?"), None, []),
        ]
        return "git status", lines, asks
    names = [f"{v.first_name(r)} {v.last_name(r)}" for _ in range(r.randint(2, 4))]
    subjects = r.sample(("Fix crash on empty input", "Add dark theme", "Update dependencies", "Speed up the parser", "Remove old tests", "Describe the options", "Handle time zones", "Close the file", "Refuse negative sizes", "Merge branch main"), len(names))
    keys = ["".join(r.pick("0123456789abcdef") for _ in range(7)) for _ in names]
    ages = [f"{n} {r.pick(('days', 'weeks'))} ago" for n in sorted(r.sample(range(2, 7), len(names)))]
    lines = [f"{k} {s} ({n}, {a})" for k, s, n, a in zip(keys, subjects, names, ages, strict=True)]
    asks: list = [(("What is the latest commit about?", "What does the newest commit say?", "What is the message of the last commit?"), subjects[0], [0]), (("Who made the latest commit?", "Who committed last?", "Who is the author of the newest commit?"), names[0], [0])]
    for n, (k, s, who, age) in enumerate(zip(keys, subjects, names, ages, strict=True)):
        asks += [((f'Who made the commit "{s}"?', f'Who is the author of "{s}"?', f'Whose commit is "{s}"?'), who, [n]), ((f'What is the hash of "{s}"?', f'Which hash does the commit "{s}" have?'), k, [n]), ((f'How old is the commit "{s}"?', f'When was "{s}" committed?'), age, [n])]
    asks.append((("On which branch am I?", "What is the current branch?"), None, []))
    return f"git log -{len(names)}", lines, asks


def ping(r: Rng) -> Session:
    host, address, n = f"{v.word(r).lower()}.example", ".".join(str(r.randint(1, 254)) for _ in range(4)), r.randint(2, 4)
    times = [f"{r.randint(1, 190)}.{r.randint(0, 9)}" for _ in range(n)]
    lost = r.randint(0, 1) * round(100 / (n + 1))
    lines = [f"PING {host} ({address})", *(f"64 bytes from {address}: icmp_seq={i + 1} time={t} ms" for i, t in enumerate(times)), f"{n + bool(lost)} packets transmitted, {n} received, {lost}% packet loss"]
    asks = [
        (("Which host is pinged?", "What is the name of the host that is pinged?", "Which computer is tested for an answer?"), host, [0]), (("What is the IP address of the host?", "Which IP address answers?", "What is the address of the pinged host?"), address, [0]), (("How high is the packet loss?", "How many percent of the packets were lost?", "What is the packet loss?"), f"{lost}%", [n + 1]),
        (("How many packets were sent?", "How many packets were transmitted?"), str(n + bool(lost)), [n + 1]), (("How long did the first answer take?", "What is the time of the first packet?"), f"{times[0]} ms", [1]),
    ]
    return f"ping -c {n + bool(lost)} {host}", lines, asks


def install(r: Rng) -> Session:
    names = [v.word(r).lower() for _ in range(r.randint(2, 4))]
    versions = [f"{r.randint(0, 9)}.{r.randint(0, 20)}.{r.randint(0, 9)}" for _ in names]
    size, speed = f"{r.randint(1, 900)}.{r.randint(0, 9)} MB", f"{r.randint(1, 40)}.{r.randint(0, 9)} MB/s"
    lines = [f"Collecting {names[0]}", f"  Downloading {names[0]}-{versions[0]}.whl ({size})", f"  {size} at {speed}", "Successfully installed " + " ".join(f"{a}-{b}" for a, b in zip(names, versions, strict=True))]
    asks = [
        ((f"Which version of {names[0]} was installed?", f"What is the version of {names[0]}?", f"Which {names[0]} do I have now?"), versions[0], [1, 3]), (("How large was the download?", "How many megabytes were downloaded?", "What was the size of the download?"), size, [1]),
        (("How fast was the download?", "What was the download speed?", "At which speed was it loaded?"), speed, [2]), (("How many packages were installed?", "How many packages did it install?"), str(len(names)), [3]), ((f"Which version of {names[-1]} was installed?", f"What is the version of {names[-1]}?"), versions[-1], [3]),
    ]
    return f"pip install {names[0]}", lines, asks


def processes(r: Rng) -> Session:
    users = ["root", v.first_name(r).lower(), "www", "postgres"]
    names = r.sample(("firefox", "python3", "nginx", "postgres", "java", "sshd", "node", "redis", "cron", "blender", "gcc", "ffmpeg"), r.randint(3, 6))
    cpu, memory = r.sample(range(1, 990), len(names)), r.sample(range(1, 400), len(names))
    ids = r.sample(range(100, 32000), len(names))
    rows = [["PID", "USER", "%CPU", "%MEM", "COMMAND"], *([str(i), r.pick(users), f"{c / 10}", f"{m / 10}", n] for i, c, m, n in zip(ids, cpu, memory, names, strict=True))]
    asks: list = []
    for n, row in enumerate(rows[1:], 1):
        asks += [
            ((f"What is the PID of {row[4]}?", f"Which process number does {row[4]} have?", f"Under which PID does {row[4]} run?"), row[0], [0, n]), ((f"How much CPU does {row[4]} use?", f"What is the CPU load of {row[4]}?", f"How many percent of the CPU does {row[4]} take?"), row[2], [0, n]),
            ((f"How much memory does {row[4]} use?", f"What is the share of memory of {row[4]}?"), row[3], [0, n]), ((f"Who runs {row[4]}?", f"Which user does {row[4]} run as?", f"Under which user does {row[4]} run?"), row[1], [0, n]),
        ]
    every = list(range(len(rows)))
    asks += [(("Which process uses the most CPU?", "What uses most of the CPU?", "Which program has the highest CPU load?"), names[cpu.index(max(cpu))], every), (("Which process uses the most memory?", "What takes most memory?", "Which program needs the most memory?"), names[memory.index(max(memory))], every), (("How many processes are listed?", "How many processes are shown?"), str(len(names)), every)]
    return r.pick(("ps -eo pid,user,pcpu,pmem,comm", "top -bn1", "ps aux")), table(rows, "023"), asks


def memory(r: Rng) -> Session:
    total = r.pick((4, 8, 16, 32, 64))
    used = r.randint(1, total - 2)
    swap, taken = r.pick((2, 4, 8)), r.randint(0, 1)
    rows = [["", "total", "used", "free"], ["Mem:", f"{total}Gi", f"{used}Gi", f"{total - used}Gi"], ["Swap:", f"{swap}Gi", f"{taken}Gi", f"{swap - taken}Gi"]]
    asks = [
        (("How much memory does the computer have?", "How much RAM is there in total?", "What is the total memory?"), rows[1][1], [0, 1]), (("How much memory is used?", "How much RAM is in use?"), rows[1][2], [0, 1]), (("How much memory is free?", "How much RAM is still free?"), rows[1][3], [0, 1]),
        (("How large is the swap?", "How much swap is there?"), rows[2][1], [0, 2]), (("How much CPU is used?", "What is the CPU load?"), None, []),
    ]
    return "free -h", table(rows, "123"), asks


def uptime(r: Rng) -> Session:
    time, days, users = clock(r), r.randint(2, 400), r.randint(2, 9)
    loads = [f"{r.randint(0, 7)}.{r.randint(0, 99):02d}" for _ in range(3)]
    lines = [f"{time} up {days} days, {users} users", f"load average: {', '.join(loads)}"]
    asks = [(("For how many days has it been running?", "How long has the computer been up?", "What is the uptime?"), f"{days} days", [0]), (("How many users are logged in?", "How many users are there on the machine?"), str(users), [0]), (("What are the load averages?", "What is the load average?"), ", ".join(loads), [1])]
    return "uptime", lines, asks


def missing(r: Rng) -> Session:
    """A command that fails."""
    name = v.word(r).lower()
    command, text, cause = r.pick((
        (f"{name} --version", f"bash: {name}: command not found", "command not found"), (f"cat {name}.txt", f"cat: {name}.txt: No such file or directory", "No such file or directory"), (f"rm /etc/{name}", f"rm: cannot remove '/etc/{name}': Permission denied", "Permission denied"),
        (f"mkdir {name}", f"mkdir: cannot create directory '{name}': File exists", "File exists"), (f"ssh {name}", f"ssh: connect to host {name} port 22: Connection refused", "Connection refused"), (f"cp {name}.iso /mnt", f"cp: error writing '/mnt/{name}.iso': No space left on device", "No space left on device"),
    ))
    return command, [text], [((f"Why did {command.split()[0]} fail?", f'What is the error of "{command}"?', f'Why does "{command}" not work?', f'What does the shell answer to "{command}"?'), cause, [0])]


COMMANDS: tuple[Callable[[Rng], Session], ...] = (disk, listing, sizes_of, build, tests, git, ping, install, processes, memory, uptime, missing)


@kind("terminal", 1.8)
def terminal(d: Document) -> None:
    ui, r = Screen(d), d.r
    user, host = r.pick((v.first_name(r).lower(), "root", "admin", "pi", v.first_name(r).lower())), f"{v.word(r).lower() if r.chance(0.5) else r.pick(HOSTS)}{r.pick(('', '1', '02', '-7'))}"
    folder = f"~/{v.word(r).lower()}" if r.chance(0.7) else "~"
    end = "#" if user == "root" else r.pick("$$%")
    prompt = r.pick((f"{user}@{host}:{folder}{end}", f"[{user}@{host} {folder}]{end}", f"{user}@{host} {folder} {end}"))
    lines: list[Text] = []
    if r.chance(0.3):
        day, source = f"{r.pick(v.WEEKDAYS)[:3]} {stamp(r)}", ".".join(str(r.randint(1, 254)) for _ in range(4))
        lines.append(ui.text(f"Last login: {day} from {source}"))
        ui.ask(("When was the last login?", "What is the time of the last login?", "When did someone last log in?"), " ".join(day.split()), lines[0])
        ui.ask(("From which address was the last login?", "What is the IP address of the last login?", "Where did the last login come from?"), source, lines[0])
    else:
        d.absent("When was the last login?", "From which address was the last login?")
    prompts: list[Text] = []
    chosen = r.sample(COMMANDS, r.choices((1, 2, 3, 4), (1, 4, 4, 2))[0])
    commands = []
    taken: set[str] = set()
    for make in chosen:
        command, printed, asks = make(r)
        commands.append(command)
        first = ui.text(f"{prompt} {command}", "bold" if r.chance(0.3) else "body")
        prompts.append(first)
        body = ui.texts(printed)
        lines += [first, *body]
        for questions, answer, needs in asks:
            if taken & {q.lower() for q in questions}:  # two commands may speak of sizes
                continue
            taken |= {q.lower() for q in questions}
            if answer is None:
                d.absent(*questions)
            else:
                ui.ask(questions, answer, [first, *(body[n] for n in needs)])
        if len(printed) > 1 and r.chance(0.5):
            ui.ask((f'What is printed in the first line after "{command}"?', f'What does "{command}" print first?'), " ".join(printed[0].split()), first, body[0])
    if r.chance(0.7):
        lines.append(ui.text(prompt))
    ui.ask(("Which user is logged in?", "Who is logged in?", "What is the name of the user?", "Which user runs the commands?", "Who is working in the terminal?"), user, prompts)
    ui.ask(("What is the name of the computer?", "What is the host name?", "On which machine is this?", "On which computer were the commands entered?", "Which host is it?"), host, prompts)
    ui.ask(("In which folder are the commands entered?", "What is the current directory?", "Which folder is the shell in?"), folder, prompts)
    ui.ask(("Which command was entered first?", "What is the first command?", "What did the user type first?"), commands[0], prompts)
    if len(commands) > 1:
        ui.ask(("Which command was entered last?", "What is the last command?", "What did the user type last?"), commands[-1], prompts)
        ui.ask(("How many commands were entered?", "How many commands did the user type?"), str(len(commands)), prompts)
    d.absent("Which operating system is it?", "Which version of Linux is it?")
    body_ = Panel(Column(lines, gap=r.pick((0, 0, 0.4))), pad=(1.5, 1), square=True)
    if r.chance(0.6):
        title = ui.text(r.pick((f"{user}@{host}: {folder}", "Terminal", f"Terminal - {host}", "bash", f"{host}: ssh")), r.pick(("small", "body")))
        menus = ("File", "Edit", "View", "Search", "Terminal", "Help") if r.chance(0.3) and ui.wide else ()
        ui.show(window(ui, title, body_, menus), fixed=True, dark=0.7)
    else:
        ui.show(body_, fixed=True, dark=0.75)
