package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/cmd/internal/version"
	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker"
	"github.com/ironlb/ironlb/speaker/unixsocket"
)

const (
	// defaultDumpSocket is that of the chart.
	defaultDumpSocket = "/run/ironlb-speaker/dump.sock"
	// dumpLimit is the time limit for one client, loopLimit that for the answer of the reconcile loop.
	dumpLimit, loopLimit = 20 * time.Second, 10 * time.Second
)

// speakerDump is the state of a running speaker. It has no key, password or token.
type speakerDump struct {
	Time      time.Time     `json:"time"`
	Node      string        `json:"node"`
	Version   string        `json:"version"`
	DataPlane dataplaneKind `json:"dataPlane,omitempty"`
	Config    any           `json:"config"`
	// Status is the SpeakerStatus as the speaker would write it now, with all members.
	Status *v1alpha1.SpeakerStatusStatus `json:"status,omitempty"`
	Loop   *speaker.Dump                 `json:"loop,omitempty"`
	Error  string                        `json:"error,omitempty"`
}

// serveDump serves the state of this process on the dump socket, if configured. Without the socket the speaker runs all
// the same.
func (p *process) serveDump() error {
	if p.dumpSocket == "" {
		return nil
	}
	l, err := unixsocket.Listen("--dump-socket", p.dumpSocket)
	if err != nil {
		p.log.Error("cannot serve ironlb-speaker dump", "error", err)
		return nil
	}
	p.atEnd(l.Release)
	p.run(func(ctx context.Context) error { return serveDumps(ctx, l, p.dump, p.log) })
	return nil
}

func (p *process) dump(ctx context.Context) speakerDump {
	ctx, cancel := context.WithTimeout(ctx, loopLimit)
	defer cancel()
	loop, err := p.loop.Dump(ctx)
	d := speakerDump{Time: time.Now().UTC(), Node: p.nodeName, Version: version.String(), DataPlane: p.servers.kind(),
		Config: plain(reflect.ValueOf(p.config)), Loop: &loop}
	if err != nil {
		d.Loop, d.Error = nil, err.Error()
	}
	if status, reported := p.api.Node.Status(); reported {
		d.Status = &status
	}
	return d
}

// serveDumps answers each connection with one dump, one after the other, until ctx ends.
func serveDumps(ctx context.Context, l *unixsocket.Listener, dump func(context.Context) speakerDump, log *slog.Logger) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		conn, err := l.AcceptUnix()
		if err == nil {
			err = sendDump(ctx, conn, dump)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			log.Warn("dump failed", "error", err)
			select { // it may have too many open files
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

func sendDump(ctx context.Context, conn *net.UnixConn, dump func(context.Context) speakerDump) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })() // a client that reads nothing must not delay the end
	if err := errors.Join(unixsocket.SameUser(conn), conn.SetDeadline(time.Now().Add(dumpLimit))); err != nil {
		return err
	}
	e := json.NewEncoder(conn)
	e.SetIndent("", " ")
	return e.Encode(dump(ctx))
}

// plain returns a value of only maps, lists and texts, with durations and addresses as texts.
func plain(v reflect.Value) any {
	if text, is := v.Interface().(fmt.Stringer); is {
		return text.String()
	}
	switch v.Kind() {
	case reflect.Struct:
		out := map[string]any{}
		for field, value := range v.Fields() {
			out[field.Name] = plain(value)
		}
		return out
	case reflect.Slice:
		out := make([]any, v.Len())
		for i := range out {
			out[i] = plain(v.Index(i))
		}
		return out
	}
	return v.Interface()
}

func dumpCommand() *cobra.Command {
	var socket string
	var node bool
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Print the state of the speaker of this container, and of its node, as JSON",
		Long: `Print the state of the running speaker as JSON: each VirtualIP with its owner, claims and reason; the other speakers as they are received;
unreachable nodes; BGP sessions; the endpoints of each Service, in use or not; the data plane; and the configuration. There is no
key or password in it. It works without the API server. With --node it adds the state of the kernel: interfaces, addresses, routes,
neighbors, IronLB's nftables tables, IPVS and sysctls.

One dump runs at a time, since it shares the memory limit of the container with the speaker. The exit code is 1 if a part is missing;
"errors" in the output has the reasons.`,
		Example: `  kubectl -n ironlb-system exec ds/ironlb-speaker -- ironlb-speaker dump --node
  crictl exec $(crictl ps -q --name ironlb-speaker) ironlb-speaker dump`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			defer time.AfterFunc(dumpMost, func() { os.Exit(1) }).Stop() // a reader that reads nothing must not keep others from it
			return writeDump(cmd.Context(), cmd.OutOrStdout(), socket, node)
		},
	}
	cmd.Flags().StringVar(&socket, "dump-socket", defaultDumpSocket, "the same flag of the running speaker")
	cmd.Flags().BoolVar(&node, "node", false, "add the state of the kernel")
	return cmd
}

// writeDump writes the dump of the speaker, and with node that of the kernel.
func writeDump(ctx context.Context, w io.Writer, socket string, node bool) error {
	o := &object{w: w}
	lock, err := lockDump(socket)
	switch {
	case errors.Is(err, errDumpRuns):
		o.put("speaker", nil, err)
		return o.end()
	case err == nil:
		defer lock.Close()
	} // else the speaker has no socket yet: the kernel's state may tell why
	answer, err := queryDump(ctx, socket)
	o.put("speaker", answer, err)
	if node {
		dumpNode(ctx, o)
	}
	return o.end()
}

// dumpMost is the time limit of the command: sysdump ends it earlier.
const dumpMost = 5 * time.Minute

// errDumpRuns is returned while another dump runs.
var errDumpRuns = errors.New("another ironlb-speaker dump is running: try again in a minute")

// lockDump fails while another dump of the same speaker runs. It does not wait: processes that wait take memory, too.
func lockDump(socket string) (*os.File, error) {
	dir, err := os.Open(filepath.Dir(socket))
	if err != nil {
		return nil, fmt.Errorf("open the directory of the speaker's socket (--dump-socket; does it run with the same flag?): %w", err)
	}
	err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errDumpRuns
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir.Name(), err), dir.Close())
	}
	return dir, nil
}

// queryDump returns the answer of the running speaker.
func queryDump(ctx context.Context, socket string) (json.RawMessage, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("connect to the speaker (--dump-socket; does it run with the same flag?): %w", err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(dumpLimit)); err != nil { // kubectl ironlb sysdump waits longer, for the kernel's state
		return nil, err
	}
	answer, err := io.ReadAll(c)
	if err != nil {
		return nil, fmt.Errorf("read the speaker's answer: %w", err)
	}
	var found struct{ Error string }
	if err := json.Unmarshal(answer, &found); err != nil {
		return nil, fmt.Errorf("read the speaker's answer of %d bytes: %w", len(answer), err)
	}
	if found.Error != "" {
		return answer, errors.New(found.Error)
	}
	return answer, nil
}

// object writes a JSON object field by field, so that only one of them is in memory.
type object struct {
	w     io.Writer
	begun bool
	errs  []error
	wrote error // the first failed write
}

// put writes a field, and JSON as it is. The error, if any, is added to the field "errors", and the value may be
// incomplete.
func (o *object) put(name string, value any, err error) {
	if err != nil {
		o.errs = append(o.errs, err)
	}
	text, is := value.(json.RawMessage)
	if !is || !json.Valid(text) {
		if text, err = json.MarshalIndent(value, "", " "); err != nil { // a RawMessage that is not JSON
			o.errs = append(o.errs, fmt.Errorf("write %s: %w", name, err))
			text = []byte("null")
		}
	}
	separator := "{"
	if o.begun {
		separator = ","
	}
	o.begun = true
	_, err = fmt.Fprintf(o.w, "%s\n%q: %s", separator, name, bytes.TrimSpace(text))
	o.wrote = cmp.Or(o.wrote, err)
}

// end writes the errors and returns them.
func (o *object) end() error {
	texts := []string{}
	for _, err := range o.errs {
		texts = append(texts, err.Error())
	}
	o.put("errors", texts, nil)
	_, err := fmt.Fprintln(o.w, "\n}")
	return errors.Join(append(o.errs, cmp.Or(o.wrote, err))...)
}
