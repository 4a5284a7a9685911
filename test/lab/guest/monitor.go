package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Pause stops the guest's processors and with them its clocks, as a hypervisor does to pause, migrate or snapshot a
// virtual machine. Packets received meanwhile are queued up to the capacity of the network cards' queues on this
// machine. A guest paused for longer than Config.HangLimit is lost.
func (g *Guest) Pause(ctx context.Context) error { return g.monitor.execute(ctx, "stop") }

// Resume continues a paused guest.
func (g *Guest) Resume(ctx context.Context) error { return g.monitor.execute(ctx, "cont") }

// monitor is QEMU's monitor: the QEMU Machine Protocol, one JSON object after the other (docs/interop/qmp-spec).
type monitor struct {
	mu      sync.Mutex
	conn    net.Conn
	in      *json.Decoder
	greeted bool
}

func newMonitor(conn net.Conn) *monitor { return &monitor{conn: conn, in: json.NewDecoder(conn)} }

func (m *monitor) close() { m.conn.Close() }

// reply is any object from QEMU: the answer to a command, or an event, which is ignored.
type reply struct {
	QMP    json.RawMessage
	Return json.RawMessage
	Error  *struct{ Desc string }
}

// execute runs a command without arguments and waits for its answer.
func (m *monitor) execute(ctx context.Context, command string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer context.AfterFunc(ctx, func() { m.conn.SetDeadline(time.Unix(1, 0)) })()
	if !m.greeted {
		if err := m.ask("qmp_capabilities"); err != nil {
			return fmt.Errorf("open QEMU's monitor: %w", err)
		}
		m.greeted = true
	}
	if err := m.ask(command); err != nil {
		return fmt.Errorf("QEMU's monitor: %s: %w", command, errors.Join(err, ctx.Err()))
	}
	return nil
}

func (m *monitor) ask(command string) error {
	if err := json.NewEncoder(m.conn).Encode(map[string]string{"execute": command}); err != nil {
		return err
	}
	for {
		var r reply
		if err := m.in.Decode(&r); err != nil {
			return err
		}
		switch {
		case r.Error != nil:
			return errors.New(r.Error.Desc)
		case r.Return != nil:
			return nil
		}
	}
}
