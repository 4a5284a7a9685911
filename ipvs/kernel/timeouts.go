package kernel

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Timeouts are how long IPVS keeps an idle connection; 0 keeps the kernel's value (ipvs.md 1.4).
type Timeouts struct {
	TCP, TCPFin, UDP time.Duration
}

// SetTimeouts sets the time-outs of the network namespace and reports whether any changed.
func (k *Kernel) SetTimeouts(want Timeouts) (changed bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	have, err := k.timeouts()
	if err != nil {
		return false, fmt.Errorf("read the time-outs of IPVS: %w", err)
	}
	merged := have
	for to, from := range map[*time.Duration]time.Duration{&merged.TCP: want.TCP, &merged.TCPFin: want.TCPFin, &merged.UDP: want.UDP} {
		if from != 0 {
			*to = from
		}
	}
	if merged == have {
		return false, nil
	}
	start := len(k.conn.out)
	k.conn.begin(cmdSetConfig, unix.NLM_F_ACK)
	for _, a := range [...]struct {
		kind  uint16
		value time.Duration
	}{{attrTimeoutTCP, merged.TCP}, {attrTimeoutTCPFin, merged.TCPFin}, {attrTimeoutUDP, merged.UDP}} {
		k.conn.out = appendUint32(k.conn.out, a.kind, uint32(a.value/time.Second))
	}
	endRequest(k.conn.out, start)
	if err := k.finish(nil); err != nil {
		return false, fmt.Errorf("set the time-outs of IPVS: %w", err)
	}
	return true, nil
}

// Timeouts returns the time-outs of the network namespace.
func (k *Kernel) Timeouts() (Timeouts, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t, err := k.timeouts()
	if err != nil {
		return t, fmt.Errorf("read the time-outs of IPVS: %w", err)
	}
	return t, nil
}

func (k *Kernel) timeouts() (t Timeouts, err error) {
	start := len(k.conn.out)
	k.conn.begin(cmdGetConfig, unix.NLM_F_ACK)
	endRequest(k.conn.out, start)
	err = k.finish(func(message []byte) {
		if len(message) < genlHeader {
			return
		}
		for kind, v := range attributes(message[genlHeader:]) {
			d := time.Duration(uint32Of(v)) * time.Second
			switch kind {
			case attrTimeoutTCP:
				t.TCP = d
			case attrTimeoutTCPFin:
				t.TCPFin = d
			case attrTimeoutUDP:
				t.UDP = d
			}
		}
	})
	return t, err
}

// finish sends the single buffered request.
func (k *Kernel) finish(found func(message []byte)) error {
	var errno unix.Errno
	if err := k.conn.exchange(found, func(_ uint32, err unix.Errno) { errno = err }); err != nil {
		k.conn.drain()
		return err
	}
	if errno != 0 {
		return explain(errno)
	}
	return nil
}
