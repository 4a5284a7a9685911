package kernel

import (
	"cmp"
	"fmt"
	"time"

	mobyipvs "github.com/moby/ipvs"
)

// Timeouts are how long IPVS keeps an idle connection; 0 keeps the kernel's value.
type Timeouts struct {
	TCP, TCPFin, UDP time.Duration
}

// SetTimeouts sets the time-outs of the network namespace and reports whether any changed.
func (k *Kernel) SetTimeouts(want Timeouts) (changed bool, err error) {
	have, err := k.Timeouts()
	if err != nil {
		return false, err
	}
	want = Timeouts{TCP: cmp.Or(want.TCP, have.TCP), TCPFin: cmp.Or(want.TCPFin, have.TCPFin), UDP: cmp.Or(want.UDP, have.UDP)}
	if want == have {
		return false, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	err = k.library.SetConfig(&mobyipvs.Config{TimeoutTCP: want.TCP, TimeoutTCPFin: want.TCPFin, TimeoutUDP: want.UDP})
	if err != nil {
		return false, fmt.Errorf("set the time-outs of IPVS: %w", explain(err))
	}
	return true, nil
}

// Timeouts returns the time-outs of the network namespace.
func (k *Kernel) Timeouts() (Timeouts, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, err := k.library.GetConfig()
	if err != nil {
		return Timeouts{}, fmt.Errorf("read the time-outs of IPVS: %w", explain(err))
	}
	return Timeouts{TCP: c.TimeoutTCP, TCPFin: c.TimeoutTCPFin, UDP: c.TimeoutUDP}, nil
}
