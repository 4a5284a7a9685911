package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/host"
)

// cpuTime is CPU time of processes.
type cpuTime struct{ user, kernel time.Duration }

func (t cpuTime) plus(more cpuTime) cpuTime {
	return cpuTime{user: t.user + more.user, kernel: t.kernel + more.kernel}
}

func (t cpuTime) minus(before cpuTime) cpuTime {
	return cpuTime{user: t.user - before.user, kernel: t.kernel - before.kernel}
}

// tick is the unit of times in /proc (USER_HZ).
const tick = 10 * time.Millisecond

// readCPU returns the sum over processes of this machine.
func readCPU(pids []int) (sum cpuTime, err error) {
	for _, pid := range pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return sum, err
		}
		t, err := parseCPU(string(data))
		if err != nil {
			return sum, err
		}
		sum = sum.plus(t)
	}
	return sum, nil
}

// parseCPU reads utime and stime of /proc/PID/stat, see proc(5): fields 14 and 15. The name, the second one, is in
// parentheses and may contain any character.
func parseCPU(stat string) (cpuTime, error) {
	const utime, stime = 14 - 3, 15 - 3
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(f) <= stime {
		return cpuTime{}, fmt.Errorf("read the CPU time of a process: %q has too few fields", stat)
	}
	user, err := strconv.ParseInt(f[utime], 10, 64)
	kernel, err2 := strconv.ParseInt(f[stime], 10, 64)
	if err := errors.Join(err, err2); err != nil {
		return cpuTime{}, fmt.Errorf("read the CPU time of a process: %w", err)
	}
	return cpuTime{user: time.Duration(user) * tick, kernel: time.Duration(kernel) * tick}, nil
}

// softirqThreads returns the threads of the kernel that continue softirq work, one for each CPU.
func softirqThreads() (pids []int, err error) {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		comm, err := os.ReadFile(name)
		if err != nil || !strings.HasPrefix(string(comm), "ksoftirqd/") {
			continue // another process, or one that has ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	if len(pids) == 0 {
		return nil, errors.New("no thread ksoftirqd in /proc: run this in the machine's own PID namespace")
	}
	return pids, nil
}

// processes returns those of a machine's network namespace.
func processes(ctx context.Context, m *lab.Machine) (pids []int, err error) {
	out, err := host.Run(ctx, m.Host(), "ip", "netns", "pids", m.Namespace)
	if err != nil {
		return nil, err
	}
	for text := range strings.FieldsSeq(string(out)) {
		pid, err := strconv.Atoi(text)
		if err != nil {
			return nil, fmt.Errorf("processes of %s: %w", m.Name, err)
		}
		pids = append(pids, pid)
	}
	if len(pids) == 0 {
		return nil, fmt.Errorf("processes of %s: there are none", m.Name)
	}
	return pids, nil
}

// lanBytes returns the bytes that each node has received and sent on the LAN, by its name.
func lanBytes(ctx context.Context, c *lab.Cluster) (map[string]uint64, error) {
	all := map[string]uint64{}
	for _, n := range c.Nodes {
		out, err := n.Exec(ctx, "ip", "-s", "-j", "link", "show", "dev", "eth0")
		if err != nil {
			return nil, err
		}
		if all[n.Name], err = parseLink([]byte(out)); err != nil {
			return nil, fmt.Errorf("%s: %w", n.Name, err)
		}
	}
	return all, nil
}

// parseLink reads the output of "ip -s -j link show" for one interface.
func parseLink(out []byte) (uint64, error) {
	var links []struct {
		Stats64 *struct{ Rx, Tx struct{ Bytes uint64 } }
	}
	if err := json.Unmarshal(out, &links); err != nil {
		return 0, fmt.Errorf("read the counters of the interface: %w", err)
	}
	if len(links) != 1 || links[0].Stats64 == nil {
		return 0, fmt.Errorf("read the counters of the interface: %q is not one interface with counters", out)
	}
	return links[0].Stats64.Rx.Bytes + links[0].Stats64.Tx.Bytes, nil
}

// neighbor returns the node whose hardware address the client has for the address.
func neighbor(ctx context.Context, c *lab.Cluster, addr string) (*lab.Node, error) {
	out, err := c.Client.Exec(ctx, "ip", "-j", "neigh", "show", "to", addr, "dev", "eth0")
	if err != nil {
		return nil, err
	}
	var found []struct{ LLAddr string }
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		return nil, fmt.Errorf("read the client's neighbors: %w", err)
	}
	for _, n := range c.Nodes {
		if len(found) == 1 && found[0].LLAddr == n.MAC() {
			return n, nil
		}
	}
	return nil, fmt.Errorf("the client has no node as neighbor for %s: %s", addr, out)
}
