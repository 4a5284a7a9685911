package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/ironlb/ironlb/cmd/kubectl-ironlb/diagnose"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

func moved(name, reason, message string, at time.Duration) *corev1.Event {
	return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Reason: reason, Message: message, LastTimestamp: *ago(at),
		Source: corev1.EventSource{Component: "ironlb-speaker"}}
}

// uiOf returns the tool and the server of the page.
func uiOf(cl client.Client) (*tool, *uiServer) {
	t := &tool{client: cl, now: func() time.Time { return now }, system: v1alpha1.Namespace, flags: genericclioptions.NewConfigFlags(false)}
	name, namespace := "lab", metav1.NamespaceDefault
	t.flags.Context, t.flags.Namespace = &name, &namespace
	return t, &uiServer{ctx: context.Background(), token: "secret", now: t.now, read: t.pageReader()}
}

func ask(u *uiServer, method, url string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, url, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	u.ServeHTTP(w, r)
	return w
}

// TestUIServer: only who has the URL reads the page, by a name of this machine, and nothing can be written.
func TestUIServer(t *testing.T) {
	_, u := uiOf(example())
	for name, test := range map[string]struct {
		method, url string
		want        int
	}{
		"page": {"GET", "http://127.0.0.1:8080/secret/", 200}, "head": {"HEAD", "http://127.0.0.1:8080/secret/", 200},
		"localhost": {"GET", "http://localhost/secret/ui.js", 200}, "IPv6": {"GET", "http://[::1]:8080/secret/ui.css", 200},
		"icon": {"GET", "http://127.0.0.1/secret/icon.svg", 200}, "JSON": {"GET", "http://127.0.0.1/secret/page.json", 200},
		"rebinding": {"GET", "http://rebound.example:8080/secret/", 421}, "another address": {"GET", "http://192.0.2.1:8080/secret/", 421},
		"suffix":   {"GET", "http://localhost.example/secret/page.json", 421},
		"no token": {"GET", "http://127.0.0.1:8080/", 403}, "no slash": {"GET", "http://127.0.0.1:8080/secret", 403},
		"wrong token": {"GET", "http://127.0.0.1:8080/secreT/page.json", 403}, "token in query": {"GET", "http://127.0.0.1:8080/page.json?secret", 403},
		"post": {"POST", "http://127.0.0.1:8080/secret/page.json", 405}, "delete": {"DELETE", "http://127.0.0.1:8080/secret/", 405},
		"unknown": {"GET", "http://127.0.0.1:8080/secret/ui", 404}, "outside": {"GET", "http://127.0.0.1:8080/secret/../ui.go", 404},
	} {
		got := ask(u, test.method, test.url)
		if got.Code != test.want {
			t.Errorf("%s: status %d, want %d: %s", name, got.Code, test.want, got.Body)
		}
		if csp := got.Header().Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'; script-src 'self';") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: Content-Security-Policy %q", name, csp)
		}
		for header, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"} {
			if got := got.Header().Get(header); got != want {
				t.Errorf("%s: %s %q", name, header, got)
			}
		}
		if strings.Contains(got.Body.String(), "192.0.2.200") != (name == "JSON") {
			t.Errorf("%s: the answer is %s", name, got.Body)
		}
	}
	first := ask(u, "GET", "http://127.0.0.1/secret/page.json").Header().Get("ETag")
	if again := ask(u, "GET", "http://127.0.0.1/secret/page.json", "If-None-Match", first); again.Code != 304 || again.Body.Len() > 0 {
		t.Errorf("unchanged: status %d: %s", again.Code, again.Body)
	}
}

// TestUIFiles: the page has no script or style in its HTML and loads nothing from elsewhere, and the script makes no
// HTML of data. (Trusted Types of the policy enforce that in a browser.)
func TestUIFiles(t *testing.T) {
	for file, kind := range uiTypes {
		text, err := uiFiles.ReadFile("ui/" + file)
		if err != nil {
			t.Fatal(err)
		}
		content := strings.ReplaceAll(string(text), `xmlns="http://www.w3.org/2000/svg"`, "")
		if bad := regexp.MustCompile(`https?://|(?i)\bon(click|load|error)=|style=|<style|<script>|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|@import|url\(`).FindString(content); bad != "" {
			t.Errorf("%s has %q", file, bad)
		}
		_, u := uiOf(cluster())
		if got := ask(u, "GET", "http://localhost/secret/"+strings.TrimPrefix(file, "index.html")).Header().Get("Content-Type"); got != kind+"; charset=utf-8" {
			t.Errorf("%s: Content-Type %q", file, got)
		}
	}
}

// TestPage: the page has what status, pools, nodes and bgp show.
func TestPage(t *testing.T) {
	pool := &v1alpha1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "lan", Annotations: map[string]string{"note": "hidden"}}, Spec: v1alpha1.IPAddressPoolSpec{Addresses: []string{"192.0.2.0/28"}}}
	pool.Status = v1alpha1.IPAddressPoolStatus{AssignedIPv4: 3, AvailableIPv4: 13, LastGood: "hidden",
		CoolingDown: []v1alpha1.CoolingAddress{{Address: "192.0.2.1", FreedBy: "hidden"}},
		Conditions:  []metav1.Condition{conditionOf("Ready", "True", "Ready", ""), conditionOf("Draining", "True", "HeldOutside", "default/old")}}
	held := conditionOf("Announced", "True", "Owner", "")
	routed := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "bgp", Annotations: map[string]string{"token": "hidden"}}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	routed.Status.Conditions = []metav1.Condition{conditionOf(v1alpha1.ConditionAddresses, "True", "Recorded", "192.0.2.30=lan")}
	a := &v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: v1alpha1.SpeakerStatusStatus{
		DataPlane: v1alpha1.DataPlaneStatus{Healthy: true, Reason: "Programmed"}, Alive: "0/1", Interfaces: []v1alpha1.InterfaceStatus{{Name: "eth0", Up: true}, {Name: "eth1"}},
		Members: []v1alpha1.MemberStatus{{Node: "b", State: v1alpha1.MemberSilent}},
		BGP: &v1alpha1.BGPStatus{Sessions: []v1alpha1.SessionStatus{{Peer: "tor", Address: "192.0.2.1", State: "Established", Reason: "HoldTimeExpired", Prefixes: 4, PeerASN: 65001,
			BFD: &v1alpha1.BFDStatus{State: "Up"}}}},
	}}
	b := a.DeepCopy()
	b.Name, b.Status.Members[0] = "b", v1alpha1.MemberStatus{Node: "a", State: v1alpha1.MemberAlive}
	tool, _ := uiOf(cluster(pool, routed, a, b,
		vip("192.0.2.10,2001:db8::10", "default/web,default/web6", "a b", "a", held), vip("192.0.2.9", "default/moving", "b a", "a", held),
		vip("192.0.2.11", "shop/stays", "b a", "b", held), vip("192.0.2.12", "shop/nowhere", "", "", conditionOf("NoEligibleNode", "True", "NoNodeMatches", "label a node")),
		vip("192.0.2.13", "shop/ghost", "c", "c", held)))
	c, err := tool.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := tool.page(c)
	if want := tool.tables(c, nil).Problems; len(want) == 0 || len(p.Problems) != len(want) || p.State != diagnose.Problem {
		t.Errorf("problems %+v, want %+v", p.Problems, want)
	}
	p.Problems = nil
	got, err := json.MarshalIndent(p, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(got), "hidden") {
		t.Errorf("more than what is shown:\n%s", got)
	}
	const since = `"2026-01-02T03:01:05Z"`
	compact := regexp.MustCompile(`\s*\n\s*`).ReplaceAllString(string(got), "")
	for _, want := range []string{
		`"context": "lab"`,
		`"pools": [{"name": "lan","ready": "True","draining": true,"addresses": ["192.0.2.0/28"],"families": [{"family": "IPv4","used": 3,"free": 13,"cooling": 1}]}]`,
		`{"name": "a","forwards": "True","reason": "Programmed","alive": "0/1","interfaces": ["eth0","eth1 (down)"],"addresses": [` +
			`{"addresses": ["192.0.2.9"],"services": ["default/moving"],"announced": "True","reason": "Owner","since": ` + since + `,"next": "b (now)"},` +
			`{"addresses": ["192.0.2.10","2001:db8::10"],"services": ["default/web","default/web6"],"announced": "True","reason": "Owner","since": ` + since + `,"next": "b"}]}`,
		`{"name": "b","forwards": "Unknown","reason": "Silent",`,
		`{"name": "c","forwards": "Unknown","reason": "NotReported","addresses": [{"addresses": ["192.0.2.13"],"services": ["shop/ghost"],"announced": "Unknown","reason": "NotReported",`,
		`{"addresses": ["192.0.2.11"],"services": ["shop/stays"],"announced": "Unknown","reason": "Silent",`,
		`"ownerless": [{"addresses": ["192.0.2.12"],"services": ["shop/nowhere"],"announced": "False","reason": "NoNodeMatches"}]`,
		`"routed": [{"addresses": ["192.0.2.30"],"services": ["shop/bgp"],"announced": "False","reason": "NotAdvertised"}]`,
		`{"node": "a","peer": "tor","address": "192.0.2.1","asn": "65001","state": "Established","prefixes": 4,"bfd": "Up"}`,
		`{"node": "b","peer": "tor","address": "192.0.2.1","asn": "65001","state": "Unknown","prefixes": 0,"reason": "Silent"}`,
	} {
		if !strings.Contains(compact, want) {
			t.Errorf("no %s in\n%s", want, compact)
		}
	}
}

// TestMoves: the Events of new owners, those of one fault in one line.
func TestMoves(t *testing.T) {
	another := moved("8", "OwnerLost", "node x answers for 192.0.2.9 in place of node y: an invention", time.Second)
	another.Source.Component = "another"
	tool, u := uiOf(cluster(another, vip("2001:db8::10,192.0.2.10", "default/web", "a", "a"),
		moved("1", "OwnerLost", "node a answers for 2001-db8--10 in place of node c after 312ms: its speaker is not received", time.Minute),
		moved("2", "OwnerLost", "node a answers for 2001-db8--10 in place of node c after 312ms: its speaker is not received", time.Minute), // another Service
		moved("3", "OwnerLost", "node b answers for 192.0.2.9 in place of node c after 1.024s: its speaker is not received", time.Minute+2*time.Second),
		moved("4", "TakenOver", "(combined from similar events): node c answers for 192.0.2.9 in place of node b", 30*time.Second),
		moved("5", "OwnerLost", "node a answers for 192.0.2.9: its speaker is not received", time.Hour), // of an earlier version
		moved("6", "OwnerLost", "what another program writes", time.Second),
		moved("7", "SessionDown", "node a answers for 192.0.2.9", time.Second),
	))
	p, err := u.read(t.Context())
	if err != nil || p.MovesError != "" {
		t.Fatal(err, p.MovesError)
	}
	got, err := json.Marshal(p.Moves)
	if err != nil {
		t.Fatal(err)
	}
	const cause = `"cause":"its speaker is not received",`
	want := `[{"at":"2026-01-02T03:03:35Z","reason":"TakenOver","from":"b","to":["c"],"addresses":["192.0.2.9"]},` +
		`{"at":"2026-01-02T03:03:05Z","reason":"OwnerLost","from":"c","to":["a","b"],` + cause + `"addresses":["192.0.2.9","192.0.2.10","2001:db8::10"],"shortest":312,"longest":1024},` +
		`{"at":"2026-01-02T02:04:05Z","reason":"OwnerLost","to":["a"],` + cause + `"addresses":["192.0.2.9"]}]`
	expect(t, "moves", string(got), want)

	// Without the right to list Events the rest is shown.
	tool.client = interceptor.NewClient(cluster(), interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, o ...client.ListOption) error {
		if _, is := l.(*corev1.EventList); is {
			return errors.New("no right")
		}
		return c.List(ctx, l, o...)
	}})
	if p, err = tool.pageReader()(t.Context()); err != nil || !strings.Contains(p.MovesError, "no right") || p.Moves == nil {
		t.Errorf("%v, %+v", err, p)
	}
}

// TestUICost: however many windows ask, the objects are read every two seconds at most, Events only after a change and
// every minute, and nothing is read while none asks. While reading fails, the last state is shown with the error.
func TestUICost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		reads, events, broken := 0, 0, false
		base := cluster(vip("192.0.2.10", "default/web", "a b", "a"))
		cl := interceptor.NewClient(base, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, o ...client.ListOption) error {
			mu.Lock()
			defer mu.Unlock()
			switch l.(type) {
			case *v1alpha1.VirtualIPList:
				reads++
			case *corev1.EventList:
				events++
			}
			if broken {
				return errors.New("no route to host\x1b[2J")
			}
			return c.List(ctx, l, o...)
		}})
		tool, u := uiOf(cl)
		tool.now, u.now = time.Now, time.Now
		during := func(d time.Duration) (int, int) {
			mu.Lock()
			reads, events = 0, 0
			mu.Unlock()
			var group sync.WaitGroup
			for range 5 {
				group.Go(func() {
					for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
						if got := ask(u, "GET", "http://localhost/secret/page.json"); got.Code != http.StatusOK {
							t.Errorf("status %d: %s", got.Code, got.Body)
						}
					}
				})
			}
			group.Wait()
			return reads, events
		}
		during(15 * time.Second)
		if r, e := during(time.Minute); r != 30 || e != 2 {
			t.Errorf("%d reads and %d of Events in a minute", r, e)
		}
		var v v1alpha1.VirtualIP
		if err := base.Get(t.Context(), client.ObjectKey{Name: "192.0.2.10"}, &v); err != nil {
			t.Fatal(err)
		}
		v.Status.Node = "b"
		if err := base.Status().Update(t.Context(), &v); err != nil {
			t.Fatal(err)
		}
		if r, e := during(10 * time.Second); r != 5 || e != 10 {
			t.Errorf("%d reads and %d of Events in 10s after a move", r, e)
		}
		time.Sleep(time.Hour)
		if mu.Lock(); reads != 5 {
			t.Errorf("%d reads although none asks", reads)
		}
		broken = true
		mu.Unlock()
		time.Sleep(5 * time.Second)
		answer := ask(u, "GET", "http://localhost/secret/page.json")
		if age := answer.Header().Get("Age"); age != "3606" {
			t.Errorf("the page is %s seconds old", age)
		}
		got := answer.Body.String()
		if !strings.Contains(got, `no route to host\\x1b[2J`) || !strings.Contains(got, "192.0.2.10") {
			t.Errorf("after an error: %s", got)
		}
		mu.Lock()
		broken = false
		mu.Unlock()
		time.Sleep(watchEvery)
		if answer = ask(u, "GET", "http://localhost/secret/page.json"); strings.Contains(answer.Body.String(), "no route") || answer.Header().Get("Age") != "0" {
			t.Errorf("after the end of the error, of %ss: %s", answer.Header().Get("Age"), answer.Body)
		}
	})
}

// TestUI: the command prints a URL that answers on both loopback addresses and nowhere else, and ends without an error.
func TestUI(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	urls := make(chan string, 1)
	cmd := command(func(*genericclioptions.ConfigFlags) (client.Client, error) { return example(), nil }, time.Now)
	cmd.SetOut(writer(func(p []byte) (int, error) { urls <- string(p); return len(p), nil }))
	cmd.SetArgs([]string{"ui"})
	ended := make(chan error)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	fields := regexp.MustCompile(`^http://127\.0\.0\.1:(\d+)/([A-Z2-7]{26})/\n`).FindStringSubmatch(<-urls)
	if fields == nil {
		t.Fatal("no URL")
	}
	for _, host := range []string{"127.0.0.1", "[::1]"} {
		answer, err := http.Get("http://" + host + ":" + fields[1] + "/" + fields[2] + "/page.json")
		if err != nil {
			t.Fatal(err)
		}
		if answer.Body.Close(); answer.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", host, answer.Status)
		}
	}
	expect(t, "port in use", run(example(), "ui", "--port", fields[1]), "error: --port: listen tcp4 127.0.0.1:"+fields[1]+": bind: address already in use")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := run(example(), "ui", "--port", "70000"); !strings.Contains(got, `error: invalid argument "70000" for "--port" flag`) {
		t.Error(got)
	}
	broken := interceptor.NewClient(cluster(), interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
		return errors.New("no route to host")
	}})
	if got := run(broken, "ui"); !strings.Contains(got, "no route to host") {
		t.Error(got)
	}
}

// TestUIExpiry: slow reads are rare, but not too rare, and one that fails does not delay the next.
func TestUIExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			took, want time.Duration
			err        error
		}{{0, watchEvery, nil}, {time.Second, 4 * time.Second, nil}, {20 * time.Second, readAtLeast, nil}, {readWithin, watchEvery, errors.New("down")}} {
			u := &uiServer{ctx: t.Context(), now: time.Now, last: &page{}, read: func(context.Context) (*page, error) {
				time.Sleep(test.took)
				return &page{}, test.err
			}}
			if _, err := u.page(); err != nil || time.Until(u.expiry) != test.want {
				t.Errorf("a read of %s: the next one is after %s, want %s: %v", test.took, time.Until(u.expiry), test.want, err)
			}
		}
	})
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
