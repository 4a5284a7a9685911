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

// Pause stops the guest's processors and with them its clocks, as a hypervisor does that pauses, migrates or snapshots
// a virtual machine. What its network cards receive meanwhile waits, as much as their queues on this machine hold. A
// guest that is paused for longer than Config.HangLimit is lost.
func (g *Guest) Pause(ctx context.Context) error { return g.monitor.execute(ctx, "stop") }

// Resume lets a paused guest go on.
func (g *Guest) Resume(ctx context.Context) error { return g.monitor.execute(ctx, "cont") }

// monitor is QEMU's: the QEMU Machine Protocol, one JSON object after the other (docs/interop/qmp-spec).
type monitor struct {
	mu      sync.Mutex
	conn    net.Conn
	in      *json.Decoder
	greeted bool
}

func newMonitor(conn net.Conn) *monitor { return &monitor{conn: conn, in: json.NewDecoder(conn)} }

func (m *monitor) close() { m.conn.Close() }

// reply is any object that QEMU sends: the answer to a command, or an event, which is left aside.
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
