package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironlb/ironlb/ipvs/ipvstest/netspace"
	"github.com/ironlb/ironlb/speaker"
	"github.com/ironlb/ironlb/speaker/unixsocket"
	"github.com/ironlb/ironlb/speaker/view"
	"github.com/ironlb/ironlb/test/eventually"
)

// printed is the output of ironlb-speaker dump.
type printed struct {
	Speaker   *speakerDump
	Links     []linkDump
	Routes    []routeDump
	Neighbors []neighborDump
	Tables    []string
	Filter    json.RawMessage `json:"nftables ip ironlb"`
	Sysctls   map[string]string
	Errors    []string
}

// read returns the output of ironlb-speaker dump, which is JSON even after an error.
func read(t *testing.T, ctx context.Context, socket string, node bool) (printed, string, error) {
	t.Helper()
	var out bytes.Buffer
	err := writeDump(ctx, &out, socket, node)
	var p printed
	if invalid := json.Unmarshal(out.Bytes(), &p); invalid != nil {
		t.Fatalf("%v:\n%s", invalid, out.String())
	}
	if (err == nil) != (len(p.Errors) == 0) {
		t.Errorf("error %v, in the output %q", err, p.Errors)
	}
	return p, out.String(), err
}

// The answers come one after the other, with the speaker's own error; a client that does not read delays the others
// only.
func TestDumpSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "own", "dump.sock")
	if _, _, err := read(t, t.Context(), socket, false); err == nil || !strings.Contains(err.Error(), "--dump-socket") {
		t.Errorf("without a speaker: %v", err)
	}
	l, err := unixsocket.Listen("--dump-socket", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	for file, want := range map[string]os.FileMode{socket: 0o600 | os.ModeSocket, filepath.Dir(socket): 0o700 | os.ModeDir} {
		if info, err := os.Stat(file); err != nil || info.Mode() != want {
			t.Errorf("%s has mode %v (%v), want %v", file, info.Mode(), err, want)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	served, calls := make(chan error), 0
	go func() {
		served <- serveDumps(ctx, l, func(context.Context) speakerDump {
			calls++
			d := speakerDump{Node: fmt.Sprint("call ", calls), Config: plain(reflect.ValueOf(newConfig())), Loop: &speaker.Dump{Ready: true}}
			if calls == 3 {
				d.Loop, d.Error = nil, "the reconcile loop does not answer"
			}
			return d
		}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	}()
	silent, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	p, text, err := read(t, t.Context(), socket, false)
	if err != nil || p.Speaker.Node != "call 2" || !p.Speaker.Loop.Ready {
		t.Errorf("%v:\n%s", err, text)
	}
	for _, want := range []string{`"DrainLimit": "15m0s"`, `"HealthzAddress": "0.0.0.0:10256"`, `"Dataplane": "auto"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the configuration lacks %s:\n%s", want, text)
		}
	}
	if p, text, err := read(t, t.Context(), socket, false); err == nil || p.Speaker.Node != "call 3" || err.Error() != "the reconcile loop does not answer" {
		t.Errorf("%v:\n%s", err, text)
	}
	lock, err := lockDump(socket)
	if err != nil {
		t.Fatal(err)
	}
	if p, text, err := read(t, t.Context(), socket, true); err == nil || !strings.Contains(err.Error(), "another ironlb-speaker dump") || p.Tables != nil {
		t.Errorf("while another dump runs: %v:\n%s", err, text)
	}
	lock.Close()
	if p, text, err := read(t, t.Context(), socket, false); err != nil || p.Speaker.Node != "call 4" {
		t.Errorf("after another dump: %v:\n%s", err, text)
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// nft takes no more than half of the memory that the container has left.
func TestMemoryOfNft(t *testing.T) {
	const limit, used = 256 << 20, 200 << 20
	for _, c := range []struct {
		files map[string]string
		want  uint64
	}{
		{nil, nftMost},
		{map[string]string{"memory.max": "max", "memory.current": fmt.Sprint(used)}, nftMost},
		{map[string]string{"memory.max": fmt.Sprint(uint64(4 << 30)), "memory.current": fmt.Sprint(used)}, nftMost},
		{map[string]string{"memory.max": fmt.Sprintln(limit), "memory.current": fmt.Sprintln(used)}, (limit - used) / 2},
		{map[string]string{"memory.max": fmt.Sprint(limit), "memory.current": fmt.Sprint(limit + 1)}, 0},
		{map[string]string{"memory/memory.limit_in_bytes": fmt.Sprint(limit), "memory/memory.usage_in_bytes": fmt.Sprint(used)}, (limit - used) / 2},
	} {
		dir := t.TempDir()
		for name, text := range c.files {
			file := filepath.Join(dir, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if have := nftMemory(dir); have != c.want {
			t.Errorf("%v: nft may use %d bytes, want %d", c.files, have, c.want)
		}
	}
}

// A table that nft cannot print within its limits is an error, not a lack of memory of the container.
func TestListTableWithinLimits(t *testing.T) {
	netspace.New(t).Must(t, func() error {
		rules := "add table ip ironlb\nadd chain ip ironlb c\n" + strings.Repeat("add rule ip ironlb c ip saddr 192.0.2.1 drop\n", 20000)
		script := exec.Command("nft", "-f", "-")
		script.Stdin = strings.NewReader(rules)
		if out, err := script.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if text, err := listTable(t.Context(), "ip ironlb", nftMost); err != nil || !json.Valid(text) {
			t.Errorf("with the most memory: %v", err)
		}
		for _, memory := range []uint64{nftMost / 16, 64 << 10} { // too little for the rules, for the program
			if text, err := listTable(t.Context(), "ip ironlb", memory); err == nil || text != nil || !strings.Contains(err.Error(), "speaker.resources") {
				t.Errorf("with %d KiB: %d bytes, %v", memory>>10, len(text), err)
			}
		}
		return nil
	})
}

// The dump of a speaker that programs a node, without the API server: the state of the loop and of the kernel, and none
// of its secrets.
func TestDumpOfNode(t *testing.T) {
	dir := t.TempDir()
	kubeconfig, keys, socket := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "keys"), filepath.Join(dir, "own", "dump.sock")
	for file, text := range map[string]string{keys: "k3y of the speakers\n", kubeconfig: `{"clusters":[{"name":"c","cluster":{"server":"https://192.0.2.1"}}],
		"users":[{"name":"u","user":{"token":"t0ken"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"current-context":"c"}`} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	v := exampleView()
	v.BGPPeers["near"] = view.BGPPeer{Address: netip.MustParseAddr("203.0.113.251"), Port: 179, MyASN: 65000, PeerASN: 65000, Password: "s3cret"}
	o := options{nodeName: "a", kubeconfig: kubeconfig, metricsAddress: "127.0.0.1:7950", keyFile: keys, dumpSocket: socket, config: newConfig()}
	node := netspace.New(t)
	netspace.Join(t, node, "eth0", "203.0.113.1/24", netspace.New(t), "eth0", "203.0.113.2/24")
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	var p *process
	node.Must(t, func() (err error) {
		if p, err = assemble(o, log); err != nil {
			return err
		}
		p.loop = speaker.New(speaker.Config{
			NodeName: "a", Plan: o.plan(), Log: log, Trigger: p.trigger, Source: &one{view: v}, Node: p.node, Announcer: &one{}, Detector: noMembers{},
			Reporter: &one{}, Nodes: p.api.Node, Metrics: speaker.NewMetrics(prometheus.NewRegistry()),
		})
		return nil
	})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer p.close()
	defer running.Wait()
	defer stop()
	running.Go(func() {
		if err := node.Do(func() error { return p.loop.Run(ctx) }); err != nil {
			t.Error(err)
		}
	})
	running.Go(func() {
		if err := p.tasks[len(p.tasks)-1](ctx); err != nil { // the last step is serveDump
			t.Error(err)
		}
	})
	var d printed
	var text string
	eventually.Nil(t, time.Minute, "a dump of the programmed node", func(ctx context.Context) error {
		return node.Do(func() (err error) {
			d, text, err = read(t, ctx, socket, true)
			if err != nil {
				return err
			}
			return eventually.Unless(d.Speaker.Loop.Ready, "the loop is not ready: %s", d.Speaker.Loop.Reason)
		})
	})
	for _, secret := range []string{"s3cret", "k3y", "t0ken"} {
		if strings.Contains(text, secret) {
			t.Errorf("it has %s:\n%s", secret, text)
		}
	}
	s := d.Speaker
	if s.Node != "a" || s.DataPlane == "" || s.Status == nil || !s.Status.DataPlane.Healthy || len(s.Loop.VirtualIPs) != 3 || len(s.Loop.Services) != 2 {
		t.Errorf("the speaker: %+v, loop %+v", s, s.Loop)
	}
	if !slices.ContainsFunc(d.Links, func(l linkDump) bool {
		return l.Name == "eth0" && slices.Contains(l.Addresses, "203.0.113.1/24")
	}) {
		t.Errorf("links %+v", d.Links)
	}
	if !slices.ContainsFunc(d.Routes, func(r routeDump) bool {
		return r.To == "203.0.113.4/32" && slices.Equal(r.Devices, []string{"lo"}) && r.Table == 255 && r.Type == "local"
	}) {
		t.Errorf("routes %+v", d.Routes)
	}
	if !slices.Contains(d.Tables, "ip ironlb") || !bytes.Contains(d.Filter, []byte("203.0.113.4")) {
		t.Errorf("tables %v, of the filter\n%s", d.Tables, d.Filter)
	}
	if d.Sysctls["net.ipv4.conf.all.arp_ignore"] == "" || d.Sysctls["net.ipv4.conf.eth0.rp_filter"] == "" {
		t.Errorf("sysctls %v", d.Sysctls)
	}
}
