package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// This program runs itself on the node, with a task on its standard input.
const (
	insideCommand = "inside"
	// loadLine requests load on the node and a line as the answer.
	loadLine = "LOAD"
	// cgroups is their mount point: "ip netns exec" hides those of /sys.
	cgroups = "/run/bench-cgroups"
	// coldLimit is the timeout for a peer to program everything: in an emulated guest kube-proxy starts an ipset
	// process for each of 10,000 entries.
	coldLimit = 90 * time.Minute
)

// cgroup is unique to the process: a cgroup with a residual child process cannot be removed.
var cgroup = cgroups + "/bench-" + strconv.Itoa(os.Getpid())

// task is the work to do.
type task struct {
	Argv       []string
	Log        string
	Kubeconfig string
	IPVS       bool
	Ready      string
	Metric     string
	Table, Set string
	Services   int
	// Changes is the number of changes to measure; 0: only the start is measured.
	Changes int
}

// subject is the measured process.
type subject struct {
	task
	cmd   *exec.Cmd
	began time.Time
	ended chan error
}

func inside() error {
	stdin := bufio.NewReader(os.Stdin)
	line, err := stdin.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read the task: %w", err)
	}
	var s subject
	if err := json.Unmarshal(line, &s.task); err != nil {
		return fmt.Errorf("read the task: %w", err)
	}
	if err := s.start(); err != nil {
		return err
	}
	defer s.stop()
	if err := s.cold(); err != nil {
		return fmt.Errorf("%w\n%s", err, s.tail())
	}
	if s.Changes == 0 {
		return nil
	}
	if err := s.changes(); err != nil {
		return fmt.Errorf("%w\n%s", err, s.tail())
	}
	fmt.Println(loadLine)
	_, err = stdin.ReadBytes('\n')
	return err
}

// start starts the process in its own cgroup, so that the usage of its children counts, too.
func (s *subject) start() error {
	if err := os.MkdirAll(cgroups, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("cgroup2", cgroups, "cgroup2", 0, ""); err != nil {
		return fmt.Errorf("mount cgroups at %s: %w", cgroups, err)
	}
	if err := os.MkdirAll(cgroup, 0o755); err != nil {
		return err
	}
	log, err := os.Create(s.Log)
	if err != nil {
		return err
	}
	group, err := os.Open(cgroup)
	if err != nil {
		return err
	}
	defer group.Close()
	s.cmd = exec.Command(s.Argv[0], s.Argv[1:]...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd()), Pdeathsig: syscall.SIGKILL}
	s.began = time.Now()
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.ended = make(chan error, 1)
	go func() { s.ended <- s.cmd.Wait() }()
	return nil
}

func (s *subject) stop() {
	_ = s.cmd.Process.Kill()
	<-s.ended
	_ = os.Remove(cgroup)
	_ = unix.Unmount(cgroups, 0)
}

func (s *subject) tail() string {
	text, err := os.ReadFile(s.Log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-2000):])
}

// cold waits until everything is programmed: the process reports ready, and the kernel's state confirms it.
func (s *subject) cold() error {
	if err := s.until(func() error {
		if !s.ready() {
			return errors.New("it does not report that it is ready")
		}
		return nil
	}); err != nil {
		return err
	}
	// Listing the kernel's state may take long: the start of the complete list counts.
	var took time.Duration
	var early error
	if err := s.until(func() error {
		took = time.Since(s.began)
		err := s.verify()
		if early == nil && err != nil {
			early = err
			fmt.Fprintf(os.Stderr, "it reported after %v that it was ready, but %v\n", took, err)
		}
		return err
	}); err != nil {
		return err
	}
	if early != nil {
		fmt.Fprintf(os.Stderr, "after %v it was\n", took)
	}
	cpu, err := cpuTime()
	if err != nil {
		return err
	}
	peak, err := s.memory("VmHWM")
	if err != nil {
		return err
	}
	fmt.Printf("Cold/PEER\t1\t%d ns/op\t%.2f s\t%.2f cpu-s\t%.1f peak-MB\n", took.Nanoseconds(), took.Seconds(), cpu.Seconds(), peak)
	return nil
}

// until waits until done returns no error.
func (s *subject) until(done func() error) error {
	for {
		wrong := done()
		if wrong == nil {
			return nil
		}
		select {
		case err := <-s.ended:
			s.ended <- err
			return fmt.Errorf("it ended: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
		if time.Since(s.began) > coldLimit {
			return fmt.Errorf("not programmed within %v: %w", coldLimit, wrong)
		}
	}
}

func (s *subject) ready() bool {
	client := http.Client{Timeout: 10 * time.Second}
	answer, err := client.Get(s.Ready)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		return false
	}
	if s.Metric == "" {
		return true
	}
	for line := range strings.Lines(string(body)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.HasPrefix(name, s.Metric) &&
			!strings.Contains(name, "IPv6") && value != "0" {
			return true
		}
	}
	return false
}

// cpuTime returns the CPU time of the process and its children.
func cpuTime() (time.Duration, error) {
	text, err := os.ReadFile(filepath.Join(cgroup, "cpu.stat"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if usage, ok := strings.CutPrefix(line, "usage_usec "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(usage), 10, 64)
			return time.Duration(n) * time.Microsecond, err
		}
	}
	return 0, fmt.Errorf("no usage_usec in cpu.stat")
}

// memory returns a field of the process's status in MB.
func (s *subject) memory(field string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			n, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			return n * 1024 / 1e6, err
		}
	}
	return 0, fmt.Errorf("no %s in the status of the process", field)
}
