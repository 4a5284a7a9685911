package main

import (
	"log/slog"
	"net/netip"
	"sync"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/ipvs/kernel"
	"github.com/ironlb/ironlb/speaker"
	"github.com/ironlb/ironlb/speaker/link"
)

// openNode returns the drivers of the node. Those that the node may lack are opened when they are first used, again and
// again until that succeeds: installing what is missing mends a running speaker.
func openNode() (speaker.Node, func(), error) {
	l, err := link.Open()
	if err != nil {
		return speaker.Node{}, nil, err
	}
	servers, filter := &virtualServers{}, &filter{}
	closeAll := func() {
		servers.close()
		filter.close()
		l.Close()
	}
	return speaker.Node{
		VirtualServers: servers,
		Filter:         filter,
		Addresses:      l,
		Sysctls:        sysctls{},
	}, closeAll, nil
}

// virtualServers is IPVS, opened and tried when it is first used.
type virtualServers struct {
	mu sync.Mutex
	k  *kernel.Kernel
}

func (v *virtualServers) open() (*kernel.Kernel, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.k != nil {
		return v.k, nil
	}
	k, err := kernel.Open()
	if err != nil {
		return nil, err
	}
	if err := k.Probe(ipvs.RoundRobin); err != nil {
		k.Close()
		return nil, err
	}
	v.k = k
	return k, nil
}

func (v *virtualServers) close() {
	if v.k != nil {
		v.k.Close()
	}
}

func (v *virtualServers) ListOf(addrs map[netip.Addr]struct{}) (ipvs.Table, error) {
	k, err := v.open()
	if err != nil {
		return nil, err
	}
	return k.ListOf(addrs)
}

func (v *virtualServers) Virtuals() (map[ipvs.Key]ipvs.Settings, error) {
	k, err := v.open()
	if err != nil {
		return nil, err
	}
	return k.Virtuals()
}

func (v *virtualServers) Apply(ops []ipvs.Op) ([]ipvs.Op, error) {
	if len(ops) == 0 {
		return nil, nil
	}
	k, err := v.open()
	if err != nil {
		return nil, err
	}
	return k.Apply(ops)
}

// sysctls are those that link wants.
type sysctls struct{}

func (sysctls) Apply() ([]string, error) {
	want, err := link.Wanted()
	if err != nil {
		return nil, err
	}
	changes, err := link.SetSysctls(want)
	var texts []string
	for _, c := range changes {
		texts = append(texts, c.Key+"="+c.To)
	}
	return texts, err
}

// prepare does what takes more rights than the speaker has: load modules and write to /proc/sys. What fails is logged and
// left to the speaker, which finds it again, says so on /readyz and goes on trying; an init container that failed would
// keep it from starting.
func prepare(log *slog.Logger) {
	servers := &virtualServers{}
	defer servers.close()
	if _, err := servers.open(); err != nil {
		log.Error("cannot prepare IPVS", "error", err)
	}
	changed, err := sysctls{}.Apply()
	for _, setting := range changed {
		log.Info("set sysctl", "setting", setting)
	}
	if err != nil {
		log.Error("cannot set all sysctls", "error", err)
	}
}
