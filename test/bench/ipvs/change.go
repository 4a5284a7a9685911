package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"time"

	mobyipvs "github.com/moby/ipvs"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	changeLimit = 5 * time.Minute
	// idleFor covers actions that a process does only every ten seconds.
	idleFor    = 20 * time.Second
	settledFor = time.Second
)

// verify checks the kernel's state: two virtual servers for each Service, with four real servers each.
func (s *subject) verify() error {
	if !s.IPVS {
		out, err := exec.Command("nft", "list", "map", "ip", s.Table, s.Set).Output()
		if err != nil {
			return fmt.Errorf("nft list map ip %s %s: %w", s.Table, s.Set, err)
		}
		if n := strings.Count(string(out), " . "+fmt.Sprint(port)+" ") + strings.Count(string(out), " . http "); n < 2*s.Services {
			return fmt.Errorf("map %s of table %s has %d elements of port %d, want %d", s.Set, s.Table, n, port, 2*s.Services)
		}
		return nil
	}
	return s.verifyIPVS()
}

// verifyIPVS lists by netlink: /proc/net/ip_vs omits entries while another network namespace, such as the last peer's,
// still has virtual servers (ip_vs_info_array and ip_vs_info_seq_next count differently,
// net/netfilter/ipvs/ip_vs_ctl.c).
func (s *subject) verifyIPVS() error {
	handle, err := mobyipvs.New("")
	if err != nil {
		return err
	}
	defer handle.Close()
	virtuals, err := handle.GetServices()
	if err != nil {
		return err
	}
	reals := 0
	for _, v := range virtuals {
		have, err := handle.GetDestinations(v)
		if err != nil {
			return err
		}
		reals += len(have)
	}
	if len(virtuals) < 2*s.Services || reals < 2*perService*s.Services {
		return fmt.Errorf("the kernel has %d virtual and %d real servers, want %d and %d", len(virtuals), reals, 2*s.Services, 2*perService*s.Services)
	}
	return nil
}

// changes changes an endpoint of one Service repeatedly, and waits each time until the process is idle.
func (s *subject) changes() error {
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig)
	if err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	victim := s.Services / 2
	watch, err := s.watch(vip(victim))
	if err != nil {
		return err
	}
	defer watch.close()
	if err := s.settle(0); err != nil {
		return err
	}
	idle, err := s.idle()
	if err != nil {
		return err
	}
	// A peer before may have left either address.
	current, err := endpoint(kube, serviceName(victim))
	if err != nil {
		return err
	}
	to := spare
	if current == spare {
		to = nth(endpoints, perService*victim+perService-1)
	}
	var sum, most, cpu, extra time.Duration
	for i := range s.Changes {
		c, err := s.change(kube, watch, serviceName(victim), to, idle)
		if err != nil {
			return fmt.Errorf("change %d: %w", i, err)
		}
		to, current = current, to
		sum, most, cpu, extra = sum+c.latency, max(most, c.latency), cpu+c.cpu, extra+c.extra
	}
	n := time.Duration(s.Changes)
	fmt.Printf("Change/PEER\t%d\t%d ns/op\t%.1f ms\t%.1f max-ms\t%.2f cpu-ms\t%.2f extra-cpu-ms\t%.2f idle-cpu-ms/s\n",
		s.Changes, (sum / n).Nanoseconds(), ms(sum/n), ms(most), ms(cpu/n), ms(extra/n), ms(idle))
	now, err := s.memory("VmRSS")
	if err != nil {
		return err
	}
	fmt.Printf("Memory/PEER\t1\t0 ns/op\t%.1f MB\n", now)
	return nil
}

// endpoint returns the address that changes replace.
func endpoint(kube kubernetes.Interface, slice string) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(context.Background(), changeLimit)
	defer cancel()
	s, err := kube.DiscoveryV1().EndpointSlices(namespace).Get(ctx, slice, metav1.GetOptions{})
	if err != nil {
		return netip.Addr{}, err
	}
	if len(s.Endpoints) != perService || len(s.Endpoints[perService-1].Addresses) != 1 {
		return netip.Addr{}, fmt.Errorf("EndpointSlice %s has %d endpoints, want %d", slice, len(s.Endpoints), perService)
	}
	return netip.ParseAddr(s.Endpoints[perService-1].Addresses[0])
}

func ms(d time.Duration) float64 { return d.Seconds() * 1e3 }

// cost is the cost of a change: the time until the kernel had it, the process's CPU time until then, and its CPU time
// beyond idling until it was idle again.
type cost struct{ latency, cpu, extra time.Duration }

// change makes one change.
func (s *subject) change(kube kubernetes.Interface, watch watch, slice string, to netip.Addr, idle time.Duration) (c cost, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), changeLimit)
	defer cancel()
	before, err := cpuTime()
	if err != nil {
		return c, err
	}
	if err := watch.arm(); err != nil {
		return c, err
	}
	start := time.Now()
	patch := fmt.Sprintf(`[{"op":"replace","path":"/endpoints/%d/addresses/0","value":"%s"}]`, perService-1, to)
	if _, err := kube.DiscoveryV1().EndpointSlices(namespace).Patch(ctx, slice, types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		return c, err
	}
	if err := watch.wait(ctx, to); err != nil {
		return c, err
	}
	c.latency = time.Since(start)
	there, err := cpuTime()
	if err != nil {
		return c, err
	}
	if err := s.settle(idle); err != nil {
		return c, err
	}
	after, err := cpuTime()
	if err != nil {
		return c, err
	}
	usual := time.Duration(float64(idle) * time.Since(start).Seconds())
	c.cpu, c.extra = there-before, max(0, after-before-usual)
	return c, nil
}

// idle returns the CPU time per second of the idle process.
func (s *subject) idle() (time.Duration, error) {
	before, err := cpuTime()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	time.Sleep(idleFor)
	after, err := cpuTime()
	return time.Duration(float64(after-before) / time.Since(start).Seconds()), err
}

// settle waits until the process has used no more than when idle for some time.
func (s *subject) settle(idle time.Duration) error {
	deadline := time.Now().Add(changeLimit)
	for idle := time.Duration(0); idle < 2*settledFor; {
		before, err := cpuTime()
		if err != nil {
			return err
		}
		time.Sleep(settledFor)
		after, err := cpuTime()
		if err != nil {
			return err
		}
		allowed := max(2*idle, idle+50*time.Millisecond)
		if idle == 0 {
			allowed = 300 * time.Millisecond
		}
		if after-before <= allowed {
			idle += settledFor
		} else {
			idle = 0
		}
		if time.Now().After(deadline) {
			return nil // a process that is never idle is measured in that state
		}
	}
	return nil
}

// watch detects a change in the kernel.
type watch interface {
	arm() error
	wait(ctx context.Context, to netip.Addr) error
	close()
}

func (s *subject) watch(vip netip.AddrPort) (watch, error) {
	if s.IPVS {
		handle, err := mobyipvs.New("")
		return &ipvsWatch{handle: handle, service: &mobyipvs.Service{
			AddressFamily: nl.FAMILY_V4, Protocol: unix.IPPROTO_TCP, Address: vip.Addr().AsSlice(), Port: vip.Port(),
		}}, err
	}
	return newNFTWatch()
}

// ipvsWatch polls the real servers of one virtual server.
type ipvsWatch struct {
	handle  *mobyipvs.Handle
	service *mobyipvs.Service
}

func (w *ipvsWatch) arm() error { return nil }
func (w *ipvsWatch) close()     { w.handle.Close() }

func (w *ipvsWatch) wait(ctx context.Context, to netip.Addr) error {
	for {
		reals, err := w.handle.GetDestinations(w.service)
		if err != nil {
			return err
		}
		for _, r := range reals {
			if addr, ok := netip.AddrFromSlice(r.Address); ok && addr.Unmap() == to && r.Weight > 0 {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("real server %v did not appear", to)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// nftWatch waits for the next transaction: only the measured process makes one on the node.
type nftWatch struct{ fd int }

func newNFTWatch() (*nftWatch, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	group := uint32(1) << (unix.NFNLGRP_NFTABLES - 1)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: group}); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &nftWatch{fd: fd}, nil
}

func (w *nftWatch) close() { unix.Close(w.fd) }

// arm discards earlier transactions.
func (w *nftWatch) arm() error {
	buf := make([]byte, 1<<16)
	for {
		_, _, err := unix.Recvfrom(w.fd, buf, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR):
			return err
		}
	}
}

func (w *nftWatch) wait(ctx context.Context, _ netip.Addr) error {
	deadline, _ := ctx.Deadline()
	limit := unix.NsecToTimeval(time.Until(deadline).Nanoseconds())
	if err := unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return err
	}
	buf := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(w.fd, buf, 0)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOBUFS):
			continue
		case err != nil:
			return fmt.Errorf("no transaction of nftables: %w", err)
		}
		messages, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return err
		}
		for _, m := range messages {
			if m.Header.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN {
				return nil
			}
		}
	}
}
