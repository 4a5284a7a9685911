package traffic

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ironlb/ironlb/ipvs"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/speaker/forwarding"
	"github.com/ironlb/ironlb/speaker/plan"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var (
	web      = ipvs.Key{Addr: netip.MustParseAddr("203.0.113.4"), Protocol: ipvs.TCP, Port: 80}
	nodePort = ipvs.Key{Addr: netip.MustParseAddr("192.0.2.1"), Protocol: ipvs.TCP, Port: 30080}
	dns6     = ipvs.Key{Addr: netip.MustParseAddr("2001:db8::53"), Protocol: ipvs.UDP, Port: 53}
	foreign  = ipvs.Key{Addr: netip.MustParseAddr("203.0.113.99"), Protocol: ipvs.TCP, Port: 80}
	pod      = netip.MustParseAddrPort("198.51.100.2:8080")
	pod6     = netip.MustParseAddrPort("[2001:db8:1::5]:5353")
)

// fake is a Source that counts its calls.
type fake struct {
	virtual, real int // calls, and virtual servers asked for
	err           error
	partial       bool // err is that of one virtual server
	nftables      bool // it counts nothing
}

func (f *fake) Counts() bool { return !f.nftables }

func stats(n uint64) ipvs.Stats {
	return ipvs.Stats{Connections: n, PacketsIn: 10 * n, PacketsOut: 11 * n, BytesIn: 1000 * n, BytesOut: 1100 * n}
}

func (f *fake) VirtualStats() (map[ipvs.Key]ipvs.Stats, error) {
	f.virtual++
	if f.partial {
		return nil, nil
	}
	if f.err != nil {
		return nil, f.err
	}
	return map[ipvs.Key]ipvs.Stats{web: stats(3), nodePort: stats(2), dns6: stats(1), foreign: stats(99)}, nil
}

func (f *fake) RealStats(keys []ipvs.Key) (map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats, error) {
	f.real += len(keys)
	if f.err != nil && !f.partial {
		return nil, f.err
	}
	return map[ipvs.Key]map[netip.AddrPort]ipvs.RealStats{
		web:  {pod: {Stats: stats(3), Active: 1, Inactive: 2}},
		dns6: {pod6: {Stats: stats(1), Inactive: 1}},
	}, f.err
}

// planned returns a plan with n endpoints in each virtual server.
func planned(n int, keys ...ipvs.Key) (*plan.Desired, map[ipvs.Key]struct{}) {
	d := &plan.Desired{Forwarding: forwarding.NewForwarding()}
	changed := map[ipvs.Key]struct{}{}
	for _, key := range keys {
		reals := map[netip.AddrPort]ipvs.RealServer{}
		for i := range n {
			reals[netip.AddrPortFrom(pod.Addr(), uint16(1+i))] = ipvs.RealServer{Weight: 1}
		}
		d.Table[key] = ipvs.VirtualServer{RealServers: reals}
		of := forwarding.ServicePort{Service: pools.ServiceKey{Namespace: "shop", Name: "web"}, Port: 80}
		if key == dns6 {
			of = forwarding.ServicePort{Service: pools.ServiceKey{Namespace: "infra", Name: "dns"}, Port: 53}
		}
		d.ServicePorts[key], changed[key] = of, struct{}{}
	}
	return d, changed
}

func open(t *testing.T, detail Detail) (*Collector, *fake, *prometheus.Registry, *bytes.Buffer) {
	t.Helper()
	source, registry, log := &fake{}, prometheus.NewPedanticRegistry(), &bytes.Buffer{}
	return New(source, detail, slog.New(slog.NewTextHandler(log, nil)), registry), source, registry, log
}

func gather(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	if answer.Code != http.StatusOK {
		t.Fatalf("%d %s", answer.Code, answer.Body)
	}
	return answer.Body.String()
}

// The labels name the Service port, also where the virtual server has a NodePort. Foreign virtual servers have no
// metrics.
func TestMetrics(t *testing.T) {
	c, source, registry, _ := open(t, Endpoints)
	c.Update(planned(1, web, nodePort, dns6))
	if source.virtual+source.real != 0 {
		t.Error("the counters are read without a scrape")
	}
	got := gather(t, registry)
	const golden = "testdata/metrics.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || got != string(want) {
		t.Errorf("%s (run with -update to accept), %v:\n%s", golden, err, got)
	}
	if source.virtual != 1 || source.real != 3 {
		t.Errorf("%d requests for virtual servers and %d for their endpoints, want 1 and 3", source.virtual, source.real)
	}
	d, changed := planned(0)
	changed[web], changed[nodePort] = struct{}{}, struct{}{}
	c.Update(d, changed)
	if got := gather(t, registry); strings.Contains(got, "203.0.113") || !strings.Contains(got, "2001:db8::53") {
		t.Errorf("two virtual servers are removed:\n%s", got)
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

func TestDetails(t *testing.T) {
	for detail, series := range map[Detail]int{None: 0, Auto: 3*5 + 3, VirtualServers: 3*5 + 3, Endpoints: 3*5 + 2*7 + 3} {
		c, source, registry, _ := open(t, detail)
		c.Update(planned(1, web, nodePort, dns6))
		got := gather(t, registry)
		if n := len(strings.Split(strings.TrimSpace(got), "\n")) - 2*strings.Count(got, "# TYPE"); got != "" && n != series || got == "" && series > 0 {
			t.Errorf("%s: %d series, want %d", detail, n, series)
		}
		if detail != Endpoints && source.real > 0 || detail == None && source.virtual > 0 {
			t.Errorf("%s: %d and %d requests", detail, source.virtual, source.real)
		}
	}
}

// Too many endpoints or virtual servers are omitted, reported, and not even read.
func TestTooMany(t *testing.T) {
	many := make([]ipvs.Key, MostVirtualServers+1)
	for i := range many {
		many[i] = ipvs.Key{Addr: web.Addr, Protocol: ipvs.TCP, Port: uint16(1 + i)}
	}
	for _, c := range []struct {
		endpoints int
		keys      []ipvs.Key
		reads     [2]int
		omitted   [2]int
	}{
		{20000 / 2, []ipvs.Key{web, dns6}, [2]int{1, 0}, [2]int{20000, 0}},
		{MostEndpoints / 2, []ipvs.Key{web, dns6}, [2]int{1, 2}, [2]int{0, 0}},
		{0, many, [2]int{0, 0}, [2]int{0, MostVirtualServers + 1}},
		{1, many[:MostVirtualServers], [2]int{1, 0}, [2]int{MostVirtualServers, 0}},
		{0, many[:MostVirtualServers], [2]int{1, 0}, [2]int{0, 0}}, // without an endpoint nothing is asked for
	} {
		collector, source, registry, _ := open(t, Endpoints)
		collector.Update(planned(c.endpoints, c.keys...))
		collector.Update(planned(c.endpoints, c.keys...)) // again: counted once
		got := gather(t, registry)
		for i, kind := range []string{"endpoints", "virtual_servers"} {
			if want := fmt.Sprintf("ironlb_ipvs_omitted{kind=%q} %d\n", kind, c.omitted[i]); !strings.Contains(got, want) {
				t.Errorf("%d virtual servers with %d endpoints: lacks %s in\n%s", len(c.keys), c.endpoints, want, got)
			}
		}
		if source.virtual != c.reads[0] || source.real != c.reads[1] {
			t.Errorf("%d virtual servers with %d endpoints: read %d and %d, want %v", len(c.keys), c.endpoints, source.virtual, source.real, c.reads)
		}
	}
}

// nftables counts nothing: no metric claims that something is omitted because there is too much of it.
func TestNFTables(t *testing.T) {
	c, source, registry, _ := open(t, Endpoints)
	source.nftables = true
	c.Update(planned(MostEndpoints, web, dns6))
	if got := gather(t, registry); got != "" || source.virtual+source.real > 0 {
		t.Errorf("%d and %d requests, got\n%s", source.virtual, source.real, got)
	}
}

// What could be read is exported, although something could not.
func TestPartial(t *testing.T) {
	c, source, registry, _ := open(t, Endpoints)
	source.err, source.partial = errors.New("one fails"), true
	c.Update(planned(1, web, dns6))
	if got := gather(t, registry); !strings.Contains(got, "ironlb_ipvs_endpoint_connections_total{") ||
		!strings.Contains(got, "ironlb_ipvs_read_errors_total 1\n") {
		t.Errorf("got\n%s", got)
	}
}

// An error leaves the other metrics of the process as they are, and is logged once.
func TestError(t *testing.T) {
	c, source, registry, log := open(t, Endpoints)
	c.Update(planned(1, web))
	source.err = errors.New("no permission")
	for i := range 2 {
		count := fmt.Sprintf("ironlb_ipvs_read_errors_total %d\n", 2*(1+i)) // of virtual servers, and of endpoints
		if got := gather(t, registry); !strings.Contains(got, count) || strings.Contains(got, "_total{") {
			t.Errorf("want %s, got\n%s", count, got)
		}
	}
	if n := strings.Count(log.String(), "Failed to read"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, log)
	}
	source.err = nil
	if got := gather(t, registry); !strings.Contains(got, "_total{") {
		t.Errorf("after the error:\n%s", got)
	}
}
