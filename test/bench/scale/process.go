package main

import (
	"bytes"
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
)

// process is a running ironlb-speaker.
type process struct {
	cmd   *exec.Cmd
	log   string
	ended chan error
	began time.Time
	// tree is the largest resident memory of the process and its child processes so far, in bytes.
	tree     chan int64
	stopTree chan struct{}
}

// treeEvery is the interval at which child processes are observed: those of a large transaction run for longer.
const treeEvery = 20 * time.Millisecond

func start(log, program string, args ...string) (*process, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &process{cmd: exec.Command(program, args...), log: log, ended: make(chan error, 1), began: time.Now(),
		tree: make(chan int64, 1), stopTree: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { p.ended <- p.cmd.Wait() }()
	go p.followTree()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil {
		return err
	}
	<-p.ended
	return nil
}

// lastOctets is how much of a log an error has.
const lastOctets = 2000

// lastLines are the end of the log, for an error.
func (p *process) lastLines() string {
	text, _ := os.ReadFile(p.log)
	return string(text[max(0, len(text)-lastOctets):])
}

// followTree records the largest resident memory of the process with its child processes.
func (p *process) followTree() {
	tick := time.NewTicker(treeEvery)
	defer tick.Stop()
	most := int64(0)
	for {
		select {
		case <-p.stopTree:
			p.tree <- most
			return
		case <-tick.C:
		}
		sum := resident(p.pid())
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.pid()))
		for _, list := range lists {
			text, _ := os.ReadFile(list)
			for _, child := range strings.Fields(string(text)) {
				if pid, err := strconv.Atoi(child); err == nil {
					sum += resident(pid)
				}
			}
		}
		most = max(most, sum)
	}
}

// treePeak ends the observation of the child processes and returns the largest memory of all.
func (p *process) treePeak() int64 {
	close(p.stopTree)
	return <-p.tree
}

// resident returns the resident memory of a process, 0 for one that has ended.
func resident(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// cpu returns the CPU time of the process and of its ended child processes.
func (p *process) cpu() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid()))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	const first, count, hertz = 11, 4, 100 // utime, stime, cutime, cstime (proc_pid_stat(5))
	sum := int64(0)
	for _, field := range fields[first : first+count] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return time.Duration(sum) * time.Second / hertz, nil
}

// megabytes returns a value in kB of a file of the process in MB.
func (p *process) megabytes(file, name string) (float64, error) {
	path := fmt.Sprintf("/proc/%d/%s", p.pid(), file)
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && key == name {
			n, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			return n * 1024 / 1e6, err
		}
	}
	return 0, fmt.Errorf("%s: no %s", path, name)
}

const metricsAddress = "http://127.0.0.1:7950"

// get returns a page of the process, and whether the response is OK.
func get(page string) (string, bool) {
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get(metricsAddress + page)
	if err != nil {
		return err.Error(), false
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return strings.TrimSpace(string(body)), err == nil && resp.StatusCode == http.StatusOK
}

// metric returns the value of a metric without labels.
func metric(name string) (float64, error) {
	page, ok := get("/metrics")
	if !ok {
		return 0, fmt.Errorf("read /metrics: %s", page)
	}
	for line := range strings.Lines(page) {
		if value, found := strings.CutPrefix(line, name+" "); found {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("no metric %s", name)
}
