package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/ironlb/ironlb/speaker/bgp"
	"github.com/ironlb/ironlb/speaker/routes"
	"github.com/ironlb/ironlb/speaker/view"
)

// ask runs "ironlb-bgpd healthy".
func (r *rig) ask(flags ...string) error {
	cmd := exec.CommandContext(r.ctx, "/proc/self/exe", append([]string{"healthy", "--socket", r.socket}, flags...)...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd.Run()
}

// TestHealthAndMetrics: probes and requests for metrics are answered, and do not replace the speaker.
func TestHealthAndMetrics(t *testing.T) {
	t.Parallel()
	r := newRig(t, "bird", true)
	s := r.speaker()
	s.Set(wanted(true, true))
	r.session(s, "established", established)
	for _, flags := range [][]string{nil, {"--ready"}} {
		if err := r.ask(flags...); err != nil {
			t.Errorf("healthy %v: %v", flags, err)
		}
	}
	r.session(s, "BFD is up", func(s routes.Session) bool { return s.BFD == view.BFDUp && established(s) })
	metrics := r.metrics()
	for _, want := range []string{
		"ironlb_bgp_gobgp_starts_total 1", "ironlb_bgp_gobgp_processes 1", "ironlb_bgp_speaker_connected 1", "ironlb_bgp_wanted_peers 1",
		"ironlb_bgp_wanted_routes 2", "ironlb_bgp_bfd_downs_total 0", `ironlb_bgp_process_sessions{state="Established"} 1`,
	} {
		if !slices.Contains(metrics, want) {
			t.Errorf("metrics have no %q: %s", want, strings.Join(metrics, "\n"))
		}
	}
	log, err := os.ReadFile(r.process.Log)
	if err != nil || strings.Contains(string(log), "CAP_SYS_NICE") || strings.Contains(string(log), password) {
		t.Errorf("it misses a privilege, or reveals its password (%v):\n%s", err, log)
	}
	if err := r.process.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := r.ask("--timeout", "500ms"); err == nil {
		t.Error("healthy while it stalls")
	}
	if err := r.process.Resume(); err != nil {
		t.Fatal(err)
	}
}

// metrics returns IronLB's metric lines, as a speaker requests them.
func (r *rig) metrics() (lines []string) {
	r.t.Helper()
	text, err := bgp.QueryMetrics(r.ctx, r.socket)
	if err != nil {
		r.t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "ironlb_") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}
