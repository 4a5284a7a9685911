package member

import (
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/speaker/priority"
)

// A thread that is refused class Deadline at first obtains it later, and each change is published once.
func TestRaise(t *testing.T) {
	if os.Geteuid() != 0 || runtime.NumCPU() == 1 {
		if testing.Short() {
			t.Skip("capability: CAP_SYS_NICE and two cores (root; left out in short mode)")
		}
		t.Fatal("CAP_SYS_NICE or a second core is missing: run this as root, or with -short")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	for cpu := range 1024 {
		if all.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	var log strings.Builder
	var published []string
	registry := prometheus.NewRegistry()
	l := &loop{Detector: &Detector{metrics: newMetrics(registry), options: Options{
		Log: slog.New(slog.NewTextHandler(&log, nil)),
		Scheduled: func(class, message string) {
			published = append(published, fmt.Sprintf("%s %t", class, message != ""))
		},
	}}}
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for range 3 {
		l.raise(now)
		now = now.Add(raiseRetry)
	}
	if want := []string{"Nice true"}; !slices.Equal(published, want) {
		t.Errorf("on one core: published %q, want %q", published, want)
	}
	if err := unix.SchedSetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	l.raise(now.Add(-raiseRetry / 2))
	if l.class != priority.Nice {
		t.Errorf("class %s before it is time to try again", l.class)
	}
	for deadline := time.Now().Add(20 * time.Second); l.class != priority.Deadline && time.Now().Before(deadline); { // other programs may use all shares
		l.raise(now)
		now = now.Add(raiseRetry)
		runtime.Gosched()
	}
	if l.class != priority.Deadline || published[len(published)-1] != "Deadline false" {
		t.Errorf("on all cores: class %s, %s, published %q", l.class, l.message, published)
	}
	if a, err := unix.SchedGetAttr(0, 0); err != nil || a.Policy != unix.SCHED_DEADLINE {
		t.Errorf("the thread has %+v, %v", a, err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	classes := map[string]float64{}
	for _, f := range families {
		if f.GetName() == "ironlb_liveness_scheduling_class" {
			for _, m := range f.GetMetric() {
				classes[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	if len(classes) != 3 || classes["Deadline"] != 1 || classes["Nice"] != 0 || classes["Normal"] != 0 {
		t.Errorf("the metric is %v", classes)
	}
	if text := log.String(); !strings.Contains(text, "lacks scheduling class Deadline") || !strings.Contains(text, "has scheduling class Deadline") {
		t.Errorf("logged %s", text)
	}
	l.restore()
	if a, err := unix.SchedGetAttr(0, 0); err != nil || a.Policy != before.Policy || a.Nice != before.Nice {
		t.Errorf("restored to %+v, %v, want %+v", a, err, before)
	}
}

// While other threads have all time reserved, the class is requested again each second, and the log names that cause.
func TestRaiseWhileReserved(t *testing.T) {
	if os.Geteuid() != 0 {
		if testing.Short() {
			t.Skip("capability: CAP_SYS_NICE (root; left out in short mode)")
		}
		t.Fatal("CAP_SYS_NICE is missing: run this as root, or with -short")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	var log strings.Builder
	l := &loop{Detector: &Detector{metrics: newMetrics(nil), options: Options{Log: slog.New(slog.NewTextHandler(&log, nil))}}}
	defer l.restore()
	end := make(chan struct{})
	for _, share := range append(slices.Clone(shares), time.Millisecond/2) {
		for full := false; !full; {
			reserved := make(chan bool)
			go func() {
				runtime.LockOSThread()
				class, _, _ := priority.Raise(share, shareOf)
				reserved <- class == priority.Deadline
				<-end
			}()
			full = !<-reserved
		}
	}
	now := time.Now()
	l.raise(now)
	close(end)
	if h := l.Health(); h.Class != string(priority.Nice) || !strings.Contains(h.Message, "have reserved the time") {
		t.Fatalf("all time is reserved: %+v", h)
	}
	if strings.Contains(log.String(), "CAP_SYS_NICE") {
		t.Errorf("logged %s", log.String())
	}
	for range 10 { // other programs may use all shares
		if now = now.Add(raiseRetry); l.class != priority.Deadline {
			<-time.After(50 * time.Millisecond)
			l.raise(now)
		}
	}
	if h := l.Health(); h.Class != string(priority.Deadline) || h.Message != "" {
		t.Errorf("released: %+v", h)
	}
}
