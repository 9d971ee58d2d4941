// SPDX-License-Identifier: MIT
// The guest's /init, one static program: it loads the modules, puts this machine's root
// (read-only, by 9p) under an overlay, has network.sh make the RDMA devices, runs one
// command and carries its streams, signals and exit status over virtio-serial ports.
// In User Mode Linux, hostfs takes 9p's place, and serial lines that of the ports. There the guest
// also says "took in|tty BYTES": a line of which much is unread stops listening for good, so the
// host sends no more than what is surely taken.
//
// lab.in, lab.out, lab.err carry the streams that are not a terminal on the host; lab.tty is
// the terminal, both ways. lab.ctl speaks lines. Guest to host: "up CLOCK", "ready CLOCK" (the
// seconds of the guest's clock, which the host compares with its own), "fail TEXT", "exit STATUS
// OUT ERR TTY" (the number of bytes sent on each port: a write to a port returns when it is
// queued, so the host counts to know that it has everything). Host to guest: "go" (start the
// command), then "signal N", "size ROWS COLUMNS", "eof BYTES" (of lab.in), "close out|err"
// (nobody reads it).
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum { IN, OUT, ERR, TTY, CTL, PORTS };
enum { MAX_WORDS = 16384, MAX_SHARES = 16 };

static const char *const port_names[PORTS] = {"lab.in", "lab.out", "lab.err", "lab.tty", "lab.ctl"};
static int ports[PORTS] = {-1, -1, -1, -1, -1};

// What to run; every string points into the job file, which is never freed.
static struct {
    char *argv[MAX_WORDS], *env[MAX_WORDS], *shares[MAX_SHARES];
    char *cwd, *network;
    char *mhz;                                     // of this machine's CPU, for /proc/cpuinfo
    char *hostfs_root, *hostfs_shares[MAX_SHARES]; // of User Mode Linux, else NULL
    bool is_tty[3];
    struct winsize size;
} job;

// One direction of one stream. A closed end is -1; what comes for a closed `to` is discarded.
struct relay {
    int from, to;
    size_t at, len;
    unsigned long long sent;
    char buf[65536];
};
static struct relay to_stdin = {-1, -1, 0, 0, 0, {0}}, from_stdout = {-1, -1, 0, 0, 0, {0}},
                    from_stderr = {-1, -1, 0, 0, 0, {0}}, to_tty = {-1, -1, 0, 0, 0, {0}},
                    from_tty = {-1, -1, 0, 0, 0, {0}};
static struct relay *const relays[] = {&to_stdin, &from_stdout, &from_stderr, &to_tty, &from_tty};
enum { RELAYS = sizeof relays / sizeof *relays };

static pid_t child;
static long long stdin_total = -1; // bytes of lab.in, once the host has seen its end
static bool may_start;             // the host has said "go"
static bool finishing;             // the command has ended; its last output is on the way

// ---- telling the host -------------------------------------------------------------------

static void say(const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    int len = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    if (len > (int)sizeof line - 2)
        len = (int)sizeof line - 2;
    line[len++] = '\n';
    for (int done = 0; done < len;) {
        ssize_t n = write(ports[CTL], line + done, (size_t)(len - done));
        if (n > 0)
            done += (int)n;
        else if (n < 0 && errno != EAGAIN && errno != EINTR)
            return;
        else
            poll(&(struct pollfd){ports[CTL], POLLOUT, 0}, 1, 100);
    }
}

static void say_with_clock(const char *word)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    say("%s %lld.%09ld", word, (long long)now.tv_sec, now.tv_nsec);
}

_Noreturn static void power_off(void)
{
    sync();
    reboot(RB_POWER_OFF);
    for (;;)
        pause();
}

_Noreturn static void fail(const char *what, const char *which)
{
    const char *why = errno ? strerror(errno) : "no details";
    dprintf(2, "lab guest: %s %s: %s\n", what, which, why);
    if (ports[CTL] >= 0) {
        say("fail %s %s: %s", what, which, why);
        pause(); // the host ends the machine as soon as it has read the line
    }
    power_off();
}

// ---- setting up -------------------------------------------------------------------------

static char *read_file(const char *path, size_t *size)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        fail("read", path);
    char *data = malloc((size_t)st.st_size + 1);
    size_t got = 0;
    for (ssize_t n; data && (n = read(fd, data + got, (size_t)st.st_size - got)) > 0;)
        got += (size_t)n;
    if (!data)
        fail("read", path);
    data[got] = '\0';
    close(fd);
    *size = got;
    return data;
}

static void write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        dprintf(2, "lab guest: write %s: %s\n", path, strerror(errno));
    if (fd >= 0)
        close(fd);
}

// The job file is a row of NUL-terminated records; the first letter says which field it is.
static void read_job(void)
{
    size_t size, argc = 0, envc = 0, shares = 0, hosts = 0;
    char *data = read_file("/job", &size);
    for (char *r = data; r < data + size; r += strlen(r) + 1) {
        if (argc == MAX_WORDS - 1 || envc == MAX_WORDS - 1 || shares == MAX_SHARES - 1) {
            errno = E2BIG;
            fail("read", "/job");
        }
        switch (*r) {
        case 'a':
            job.argv[argc++] = r + 1;
            break;
        case 'e':
            job.env[envc++] = r + 1;
            break;
        case 's':
            job.shares[shares++] = r + 1;
            break;
        case 'r':
            job.hostfs_root = r + 1;
            break;
        case 'h': // as many as there are shares
            job.hostfs_shares[hosts++] = r + 1;
            break;
        case 'd':
            job.cwd = r + 1;
            break;
        case 'f':
            job.mhz = r + 1;
            break;
        case 'n':
            job.network = r + 1;
            break;
        case 't':
            job.is_tty[r[1] - '0'] = true;
            break;
        case 'v': // a variable of network.sh
            putenv(r + 1);
            break;
        case 'w':
            sscanf(r + 1, "%hu %hu", &job.size.ws_row, &job.size.ws_col);
            break;
        }
    }
}

static void mount_on(const char *type, const char *source, const char *target, unsigned long flags,
                     const char *options)
{
    if (mount(source, target, type, flags, options) < 0)
        fail("mount", target);
}

static void make_dirs(const char *path)
{
    char part[4096];
    for (size_t i = 1; i < sizeof part; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        snprintf(part, i + 1, "%s", path);
        if (mkdir(part, 0755) < 0 && errno != EEXIST)
            fail("mkdir", part);
        if (path[i] == '\0')
            return;
    }
}

static void load_modules(void)
{
    struct dirent **names;
    int count = scandir("/m", &names, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        char path[300];
        snprintf(path, sizeof path, "/m/%s", names[i]->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (names[i]->d_name[0] != '.' && syscall(SYS_finit_module, fd, "", 0) < 0 &&
            errno != EEXIST)
            fail("load module", path);
        close(fd);
        unlink(path); // the initramfs is memory
    }
}

static void open_port(const char *device)
{
    char path[300], name[64] = "";
    snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", device);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, name, sizeof name - 1);
    close(fd);
    snprintf(path, sizeof path, "/dev/%s", device);
    for (int i = 0; n > 0 && i < PORTS; i++)
        if (ports[i] < 0 && strncmp(name, port_names[i], strlen(port_names[i])) == 0)
            ports[i] = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
}

// Serial lines carry bytes as they are, once their terminal driver is told to.
static void open_lines(void)
{
    for (int i = 0; i < PORTS; i++) {
        char path[32];
        struct termios mode;
        snprintf(path, sizeof path, "/dev/ttyS%d", i);
        ports[i] = open(path, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
        if (ports[i] < 0 || tcgetattr(ports[i], &mode) < 0)
            fail("open", path);
        cfmakeraw(&mode);
        if (tcsetattr(ports[i], TCSANOW, &mode) < 0)
            fail("set", path);
    }
}

// The ports come one by one after the driver's probe, and nothing can be awaited before udev.
static void open_ports(void)
{
    for (int tries = 0; tries < 2000; tries++) {
        DIR *dir = opendir("/sys/class/virtio-ports");
        for (struct dirent *e; dir && (e = readdir(dir));)
            if (e->d_name[0] != '.')
                open_port(e->d_name);
        if (dir)
            closedir(dir);
        int open_now = 0;
        for (int i = 0; i < PORTS; i++)
            open_now += ports[i] >= 0;
        if (open_now == PORTS)
            return;
        usleep(5000);
    }
    errno = ETIMEDOUT;
    fail("find", "the virtio ports");
}

#define NINEP "trans=virtio,version=9p2000.L,msize=512000,"

static void switch_root(void)
{
    if (job.hostfs_root)
        mount_on("hostfs", "root", "/ro", MS_RDONLY, job.hostfs_root);
    else
        mount_on("9p", "root", "/ro", MS_RDONLY, NINEP "cache=loose");
    mount_on("tmpfs", "tmpfs", "/rw", 0, "mode=755");
    make_dirs("/rw/upper");
    make_dirs("/rw/work");
    mount_on("overlay", "overlay", "/root", 0, "lowerdir=/ro,upperdir=/rw/upper,workdir=/rw/work");
    static const char *const move[] = {"/proc", "/sys", "/dev"};
    for (size_t i = 0; i < 3; i++) {
        char target[64];
        snprintf(target, sizeof target, "/root%s", move[i]);
        make_dirs(target);
        mount_on(NULL, move[i], target, MS_MOVE, NULL);
    }
    if (chdir("/root") < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 ||
        chdir("/") < 0)
        fail("switch root", "");
}

static void mount_rest(void)
{
    mount_on("tmpfs", "tmpfs", "/run", 0, "mode=755");
    make_dirs("/run/lock");
    make_dirs("/dev/shm");
    make_dirs("/dev/pts");
    mount_on("tmpfs", "tmpfs", "/dev/shm", 0, "mode=1777");
    mount_on("devpts", "devpts", "/dev/pts", 0, "mode=620,ptmxmode=666");
    static const char *const links[][2] = {{"fd", "/dev/fd"},
                                           {"fd/0", "/dev/stdin"},
                                           {"fd/1", "/dev/stdout"},
                                           {"fd/2", "/dev/stderr"}};
    for (size_t i = 0; i < 4; i++)
        if (symlink(i ? links[i][0] : "/proc/self/fd", links[i][1]) < 0 && errno != EEXIST)
            fail("link", links[i][1]);
    for (int i = 0; job.shares[i]; i++) {
        char tag[16];
        snprintf(tag, sizeof tag, "share%d", i);
        make_dirs(job.shares[i]);
        if (job.hostfs_root)
            mount_on("hostfs", tag, job.shares[i], 0, job.hostfs_shares[i]);
        else // cache=mmap: what the host changes is seen, and files can be mapped all the same.
            mount_on("9p", tag, job.shares[i], 0, NINEP "cache=mmap");
    }
}

// User Mode Linux does not say how fast its CPU is, which programs that count its cycles ask for.
static void tell_frequency(void)
{
    static const char known[] = "/proc/cpuinfo", told[] = "/run/cpuinfo";
    char line[4096];
    FILE *from = fopen(known, "re"), *to = fopen(told, "we");
    if (!from || !to)
        fail("copy", known);
    while (fgets(line, sizeof line, from)) {
        fputs(line, to);
        if (strncmp(line, "model name", strlen("model name")) == 0)
            fprintf(to, "cpu MHz\t\t: %s\n", job.mhz);
    }
    fclose(from);
    if (fclose(to) != 0)
        fail("write", told);
    mount_on(NULL, told, known, MS_BIND, NULL);
}

/* As it begins, Linux mixes random bytes of the host into its pool. 6.1 does not count them, and
 * without that getrandom(2) waits for ever on an idle machine. */
static void count_seed(void)
{
    const int bits = 256, fd = open("/dev/random", O_WRONLY);
    if (fd < 0 || ioctl(fd, RNDADDTOENTCNT, &bits) < 0)
        fail("count", "the seed of /dev/random");
    close(fd);
}

static void set_limits(void)
{
    const struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY}, files = {1024, 1048576};
    setrlimit(RLIMIT_MEMLOCK, &unlimited);
    setrlimit(RLIMIT_CORE, &unlimited);
    setrlimit(RLIMIT_NOFILE, &files);
    write_file("/proc/sys/kernel/core_pattern", "core.%e.%p");
    char name[32] = "cqnotify-lab";
    if (getenv("LAB_HOST")) // "NUMBER COUNT", one of several
        snprintf(name, sizeof name, "host%d", atoi(getenv("LAB_HOST")));
    if (sethostname(name, strlen(name)) < 0)
        fail("set", "the host name");
    umask(022);
}

static void make_network(void)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", 1);
        execl("/bin/sh", "sh", job.network, "up", NULL);
        _exit(127);
    }
    errno = 0;
    if (waitpid(pid, &status, 0) < 0 || status != 0)
        fail("make the RDMA devices with", job.network);
}

// ---- the command ------------------------------------------------------------------------

_Noreturn static void exec_job(const int fds[3])
{
    sigset_t none;
    bool on_tty = job.is_tty[0] || job.is_tty[1] || job.is_tty[2];
    if (on_tty)
        setpgid(0, 0);
    else
        setsid();
    for (int i = 0; i < 3; i++)
        dup2(fds[i], i); // both ends are close-on-exec; the copies are not
    for (int i = 0; i < 3; i++)
        if (job.is_tty[i])
            tcsetpgrp(i, getpid()); // SIGTTOU is still blocked
    signal(SIGPIPE, SIG_DFL);       // an ignored signal would stay ignored
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    environ = job.env;
    if (chdir(job.cwd) < 0) {
        dprintf(2, "lab: %s: %s\n", job.cwd, strerror(errno));
        _exit(126);
    }
    execvp(job.argv[0], job.argv);
    dprintf(2, "lab: %s: %s\n", job.argv[0], strerror(errno));
    _exit(errno == ENOENT ? 127 : 126);
}

// vfork, because it returns when the command has its terminal and its process group: a Ctrl-C
// that came earlier would be lost.
static void spawn(const int fds[3])
{
    child = vfork();
    if (child < 0)
        fail("fork", "");
    if (child == 0)
        exec_job(fds);
}

// The session is init's own: when a session's leader exits, the kernel discards the output that
// has not yet crossed the pseudo-terminal.
static int open_tty(void)
{
    struct termios mode;
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (master < 0 || grantpt(master) < 0 || unlockpt(master) < 0)
        fail("open", "a terminal");
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (slave < 0 || tcgetattr(slave, &mode) < 0)
        fail("open", "a terminal");
    mode.c_iflag |= IUTF8;
    tcsetattr(slave, TCSANOW, &mode);
    ioctl(slave, TIOCSWINSZ, &job.size);
    setsid();
    if (ioctl(slave, TIOCSCTTY, 0) < 0)
        fail("control", "the terminal");
    to_tty.from = from_tty.to = ports[TTY];
    from_tty.from = master;
    to_tty.to = fcntl(master, F_DUPFD_CLOEXEC, 3); // each relay closes its own
    return slave;
}

static void start_job(void)
{
    struct relay *const of[3] = {&to_stdin, &from_stdout, &from_stderr};
    int fds[3], slave = -1;
    for (int i = 0; i < 3; i++) {
        int pair[2];
        if (job.is_tty[i]) {
            fds[i] = slave = slave < 0 ? open_tty() : slave;
            continue;
        }
        if (pipe2(pair, O_CLOEXEC) < 0)
            fail("make", "a pipe");
        int mine = pair[i == 0];
        fds[i] = pair[i != 0];
        fcntl(mine, F_SETFL, O_NONBLOCK);
        of[i]->from = i ? mine : ports[IN];
        of[i]->to = i ? ports[i] : mine;
    }
    spawn(fds);
    for (int i = 0; i < 3; i++)
        if (!job.is_tty[i])
            close(fds[i]);
    if (slave >= 0)
        close(slave);
}

// ---- carrying its streams ---------------------------------------------------------------

static bool is_port(int fd)
{
    for (int i = 0; i < PORTS; i++)
        if (fd >= 0 && fd == ports[i])
            return true;
    return false;
}

static void shut(int *fd)
{
    if (*fd >= 0 && !is_port(*fd))
        close(*fd);
    *fd = -1;
}

static void fill(struct relay *r)
{
    if (r->from < 0 || r->len > 0)
        return;
    ssize_t n = read(r->from, r->buf, sizeof r->buf);
    if (n > 0) {
        r->at = 0;
        r->len = (size_t)n;
        if (job.hostfs_root && is_port(r->from))
            say("took %s %llu", r == &to_tty ? "tty" : "in", r->sent + r->len);
    }
    else if (is_port(r->from) || (n < 0 && errno == EINTR)) {
        return; // a port has no end: the host counts
    }
    else if (n == 0 || errno != EAGAIN || finishing) {
        // A background process may hold the other end open: what is there when the command has
        // ended is what counts. (For a terminal, poll() has just brought it all across.)
        shut(&r->from);
    }
}

static void flush(struct relay *r)
{
    if (r->len == 0)
        return;
    ssize_t n = r->to < 0 ? (ssize_t)r->len : write(r->to, r->buf + r->at, r->len);
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
        shut(&r->to);
        n = (ssize_t)r->len;
    }
    if (n > 0) {
        r->at += (size_t)n;
        r->len -= (size_t)n;
        r->sent += (unsigned long long)n;
    }
}

static void obey(const char *line)
{
    int number;
    struct winsize size = {0};
    if (strcmp(line, "go") == 0)
        may_start = true;
    else if (sscanf(line, "signal %d", &number) == 1)
        kill(-child, number);
    else if (sscanf(line, "eof %lld", &stdin_total) == 1)
        return;
    else if (sscanf(line, "size %hu %hu", &size.ws_row, &size.ws_col) == 2)
        ioctl(from_tty.from, TIOCSWINSZ, &size);
    else if (strcmp(line, "close out") == 0)
        shut(&from_stdout.from); // the command gets SIGPIPE, as it would on the host
    else if (strcmp(line, "close err") == 0)
        shut(&from_stderr.from);
}

// Obeys one line, if all of it is there.
static bool read_order(void)
{
    static char line[256];
    static size_t len;
    char c;
    while (read(ports[CTL], &c, 1) == 1) {
        if (c != '\n') {
            line[len] = c;
            len += len < sizeof line - 1;
            continue;
        }
        line[len] = '\0';
        len = 0;
        obey(line);
        return true;
    }
    return false;
}

static void await_go(void)
{
    while (!may_start)
        if (!read_order())
            poll(&(struct pollfd){ports[CTL], POLLIN, 0}, 1, -1);
}

// Reaps orphans too. Returns the command's status as a shell would tell it, or -1.
static int reap(int signals)
{
    struct signalfd_siginfo info;
    int status, result = -1;
    while (read(signals, &info, sizeof info) > 0)
        ;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0;)
        if (WIFSTOPPED(status) && WSTOPSIG(status) == SIGTSTP && pid == child)
            kill(-child, SIGCONT); // Ctrl-Z: nobody is there who could bring it back
        else if (!WIFSTOPPED(status) && pid == child)
            result = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return result;
}

static void wait_for_work(int signals)
{
    struct pollfd fds[RELAYS + 2] = {{signals, POLLIN, 0}, {ports[CTL], POLLIN, 0}};
    for (int i = 0; i < RELAYS; i++) {
        struct relay *r = relays[i];
        fds[i + 2] = (struct pollfd){r->len ? r->to : r->from, r->len ? POLLOUT : POLLIN, 0};
    }
    poll(fds, RELAYS + 2, finishing ? 50 : -1);
}

static bool drained(void)
{
    bool all = true;
    for (int i = 0; i < RELAYS; i++)
        if (relays[i] != &to_stdin && relays[i] != &to_tty)
            all = all && relays[i]->from < 0 && relays[i]->len == 0;
    return all;
}

static int supervise(int signals)
{
    int status = -1;
    while (!finishing || !drained()) {
        wait_for_work(signals);
        while (read_order())
            ;
        for (int i = 0; i < RELAYS; i++) {
            fill(relays[i]);
            flush(relays[i]);
        }
        if (stdin_total >= 0 && to_stdin.len == 0 &&
            to_stdin.sent == (unsigned long long)stdin_total)
            shut(&to_stdin.to);
        int ended = reap(signals);
        if (ended >= 0) {
            status = ended;
            finishing = true; // one more wait, and what is then not there does not come
        }
    }
    return status;
}

static void tidy_up(void)
{
    kill(-1, SIGKILL);
    for (int tries = 0; tries < 300 && waitpid(-1, NULL, WNOHANG) >= 0; tries++)
        usleep(10000); // bounded: a process stuck in the kernel must not hold the result back
    sync();
    for (int i = 0; job.shares[i]; i++)
        if (umount2(job.shares[i], 0) < 0)
            umount2(job.shares[i], MNT_DETACH);
}

// A kernel's timers are as coarse as its ticks until its first tick. In virtual time the command
// would begin before that, and asyncio, which reads the resolution once, would call everything 10
// ms early.
static void await_fine_timers(void)
{
    struct timespec resolution;
    for (int tries = 0; tries < 100; tries++) {
        if (clock_getres(CLOCK_MONOTONIC, &resolution) < 0 || resolution.tv_nsec == 1)
            return;
        usleep(1000);
    }
}

int main(void)
{
    sigset_t blocked, chld;
    signal(SIGPIPE, SIG_IGN);
    static const char *const dirs[] = {"/proc", "/sys", "/dev", "/ro", "/rw", "/root"};
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++)
        make_dirs(dirs[i]);
    mount_on("proc", "proc", "/proc", 0, NULL);
    mount_on("sysfs", "sys", "/sys", 0, NULL);
    if (mount("dev", "/dev", "devtmpfs", 0, NULL) < 0 && errno != EBUSY)
        fail("mount", "/dev");
    read_job();
    load_modules();
    if (job.hostfs_root)
        open_lines();
    else
        open_ports();
    say_with_clock("up");
    switch_root();
    mount_rest();
    if (job.mhz)
        tell_frequency();
    if (job.hostfs_root)
        count_seed();
    set_limits();
    make_network();
    await_fine_timers();

    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    blocked = chld;
    sigaddset(&blocked, SIGTTOU);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    int signals = signalfd(-1, &chld, SFD_NONBLOCK | SFD_CLOEXEC);
    say_with_clock("ready");
    await_go();
    start_job();
    int status = supervise(signals);
    tidy_up();
    say("exit %d %llu %llu %llu", status, from_stdout.sent, from_stderr.sent, from_tty.sent);
    pause(); // the host ends the machine when it has read everything
    power_off();
}
