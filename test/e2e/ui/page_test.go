package ui

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/eventually"
)

var update = flag.Bool("update", false, "write the pictures of the documentation")

// shown is what the page shows, without what the time changes.
type shown struct {
	State    string
	Totals   []string
	Problems []string
	Moves    []string
	Nodes    []node
	Pools    []string
	Sessions []string
	Live     string
}

type node struct {
	Name, Is, About string
	Rows            []string
}

// readPage reads the page by its structure.
const readPage = `(() => {
	const all = selector => [...document.querySelectorAll(selector)];
	const words = e => { const c = e.cloneNode(true); c.querySelectorAll('time').forEach(t => t.remove()); return c.innerText.replace(/\s+/g, ' ').trim(); };
	return {
		state: words(document.getElementById('state')), live: document.getElementById('live').textContent,
		totals: all('#totals > div').map(words), problems: all('#problems > li').map(words), moves: all('#moves > li').map(words),
		nodes: all('#nodes > li').map(e => ({name: e.querySelector('.name')?.textContent ?? '', is: e.className, about: e.querySelector('p')?.textContent ?? '', rows: [...e.querySelectorAll('.rows li')].map(words)})),
		pools: all('#pools > li').map(words), sessions: all('#sessions > tr').map(words),
	};
})()`

func (b *browser) read(t *testing.T) (s shown) {
	t.Helper()
	b.eval(t, readPage, &s)
	return s
}

// owners returns the VirtualIPs of each node, as the page has to show them.
func owners(ctx context.Context) (map[string][]string, error) {
	var vips v1alpha1.VirtualIPList
	if err := cluster.Objects.List(ctx, &vips); err != nil {
		return nil, err
	}
	of := map[string][]string{}
	for _, v := range vips.Items {
		row := "✓ announced " + v.Spec.Addresses[0] + " " + v.Spec.Services[0].Namespace + "/" + v.Spec.Services[0].Name
		of[v.Status.Node] = append(of[v.Status.Node], row)
		slices.Sort(of[v.Status.Node])
	}
	return of, nil
}

// is compares the tiles of the nodes with the owners in the API.
func (s shown) is(ctx context.Context) error {
	want, err := owners(ctx)
	if err != nil {
		return err
	}
	for _, n := range cluster.Nodes {
		i := slices.IndexFunc(s.Nodes, func(one node) bool { return one.Name == n.Name })
		if i < 0 {
			return fmt.Errorf("no node %s in %+v", n.Name, s.Nodes)
		}
		if rows := slices.Sorted(slices.Values(s.Nodes[i].Rows)); !slices.Equal(rows, want[n.Name]) {
			return fmt.Errorf("node %s has %q, want %q", n.Name, rows, want[n.Name])
		}
	}
	return nil
}

func (s shown) String() string {
	text, err := json.MarshalIndent(s, "", " ")
	return fmt.Sprint(string(text), err)
}

// TestPage: the page shows a healthy cluster; then, in the same window, which node died, its addresses on the others,
// how long they had no answer, its sessions and the problems that status prints.
func TestPage(t *testing.T) {
	url := startUI(t, cluster.Kubeconfig())
	b := startBrowser(t)
	b.show(t, 1280, 980, "light")
	b.open(t, url)
	var s shown
	// A speaker that stalled on a busy machine reports that for five minutes.
	cluster.Await(t, 7*time.Minute, "the page shows a healthy cluster", func(ctx context.Context) error {
		s = b.read(t)
		return errors.Join(s.is(ctx), eventually.Unless(s.State == "✓ No problem" && slices.Equal(s.Problems, []string{"None."}) && strings.HasPrefix(s.Live, "live, updated ") &&
			slices.Equal(s.Totals, []string{"8 Addresses announced", "3 Nodes that forward", "8 Free in pools", "3 BGP sessions established", "3 BFD sessions up"}), "it shows %v", s))
	})
	for i, n := range s.Nodes[:3] {
		if n.Is != "is-OK" || !regexp.MustCompile(`^forwards · receives 2/2 · (.+, )?eth0`).MatchString(n.About) || n.Name != cluster.Node(i).Name {
			t.Errorf("node %+v", n)
		}
	}
	if n := s.Nodes[3]; len(s.Nodes) != 4 || n.Name != "BGP only" || n.Is != "is-OK" || !slices.Equal(n.Rows, []string{"✓ announced 192.0.2.136 default/api", "✓ announced 192.0.2.137 default/mail"}) {
		t.Errorf("nodes %+v", s.Nodes)
	}
	if want := []string{"✓ lan 192.0.2.128/29 IPv4 6 used 0 cooling 2 free", "✓ routed 192.0.2.136/29 IPv4 2 used 0 cooling 6 free"}; !slices.Equal(s.Pools, want) {
		t.Errorf("pools %q, want %q", s.Pools, want)
	}
	for i, row := range s.Sessions {
		if want := fmt.Sprintf("%s tor %v 65002 ✓ Established ✓ Up 2", cluster.Node(i).Name, cluster.Router.Addr); row != want {
			t.Errorf("session %q, want %q", row, want)
		}
	}
	write(t, "ui-healthy.png", b.picture(t))
	b.usable(t)

	b.show(t, 1280, 980, "light")
	b.eval(t, `window.mine = true; window.shifted = 0; document.getElementById('filter').focus()`, nil)
	dead := cluster.Node(0)
	of, err := owners(t.Context())
	if err != nil || len(of[dead.Name]) == 0 {
		t.Fatalf("owners %v: %v", of, err)
	}
	if err := dead.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	cluster.Await(t, 2*patience, "the page shows that "+dead.Name+" is dead", func(ctx context.Context) error {
		s = b.read(t)
		gone := s.Nodes[0]
		return errors.Join(s.is(ctx),
			eventually.Unless(gone.Is == "is-Unknown" && strings.HasPrefix(gone.About, "unknown: Silent") && len(gone.Rows) == 0, "%s is %+v", dead.Name, gone),
			eventually.Unless(slices.Contains(s.Totals, "8 Addresses announced") && slices.Contains(s.Totals, "2 of 3 Nodes that forward") &&
				slices.Contains(s.Totals, "2 of 3 BGP sessions established"), "totals %q", s.Totals),
			eventually.Unless(slices.Contains(s.Problems, "✕Problem Silent Node "+dead.Name+" its speaker is gone: its last report is outdated"), "problems %q", s.Problems),
			eventually.Unless(slices.ContainsFunc(s.Sessions, func(row string) bool {
				return strings.HasPrefix(row, dead.Name+" tor ") && strings.HasSuffix(row, " ? Unknown – – Silent")
			}), "sessions %q", s.Sessions),
			s.tells(dead.Name, of[dead.Name]))
	})
	// status prints the same problems.
	out, err := cluster.Plugin(t.Context(), "status")
	if err != nil || !strings.Contains(out, "Problem Node "+dead.Name+": Silent: its speaker is gone: its last report is outdated") {
		t.Errorf("status: %v\n%s", err, out)
	}
	var live struct {
		Mine    bool
		Focus   string
		Shifted float64
	}
	b.eval(t, `({mine: window.mine === true, focus: document.activeElement.id, shifted: window.shifted})`, &live)
	if !live.Mine || live.Focus != "filter" || live.Shifted > 0.05 {
		t.Errorf("the page was loaded again, lost the focus, or its layout shifted: %+v", live)
	}
	b.eval(t, `document.activeElement.blur()`, nil)
	write(t, "ui-dead-node.png", b.picture(t))
	b.clean(t, url)
}

// tells reports whether a move from the node is shown with its addresses, its cause and its duration.
func (s shown) tells(from string, rows []string) error {
	move := regexp.MustCompile(`^(\d+ ms|\d+\.\d+ s)( to (\d+ ms|\d+\.\d+ s))? ` + from + ` → \S+( \S+)* its speaker is not received$`)
	for _, m := range s.Moves {
		all := move.MatchString(m)
		for _, row := range rows {
			all = all && strings.Contains(m, strings.Fields(row)[2])
		}
		if all {
			return nil
		}
	}
	return fmt.Errorf("moves %q, want one from %s of %q", s.Moves, from, rows)
}

// usable: neither a small window nor dark colours hide something, and the keyboard reaches what can be used.
func (b *browser) usable(t *testing.T) {
	t.Helper()
	for _, width := range []int{1280, 768, 360} {
		for _, colours := range []string{"light", "dark"} {
			b.show(t, width, 900, colours)
			var got struct {
				Wide, Outside int
				Contrast      float64
			}
			b.eval(t, `(() => {
				const light = c => { const [r, g, b] = c.match(/[\d.]+/g).map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
				const back = light(getComputedStyle(document.querySelector('section')).backgroundColor);
				const ratios = [...document.querySelectorAll('section *')].map(e => light(getComputedStyle(e).color)).map(l => (Math.max(l, back) + 0.05) / (Math.min(l, back) + 0.05));
				const sections = [...document.querySelectorAll('section, header > *')].map(e => e.getBoundingClientRect());
				return {wide: document.documentElement.scrollWidth - innerWidth, outside: sections.filter(r => r.left < 0 || r.right > innerWidth).length, contrast: Math.min(...ratios)};
			})()`, &got)
			if got.Wide > 0 || got.Outside > 0 || got.Contrast < 4.5 { // WCAG 2.2, 1.4.3
				t.Errorf("%d pixels, %s: %+v", width, colours, got)
			}
		}
	}
	var names []string
	b.eval(t, `[...document.querySelectorAll('section, [tabindex], input')].map(e => e.getAttribute('aria-labelledby') ? document.getElementById(e.getAttribute('aria-labelledby')).textContent : e.labels?.[0].textContent.trim())`, &names)
	if slices.Contains(names, "") || len(names) < 10 {
		t.Errorf("names for a screen reader: %q", names)
	}
}

// mostOctets is the size of a picture in the repository.
const mostOctets = 200_000

// write writes a picture of the documentation with -update. Without, it compares nothing: pixels depend on fonts.
func write(t *testing.T, name string, png []byte) {
	t.Helper()
	if len(png) < 10_000 || len(png) > mostOctets {
		t.Errorf("picture %s has %d octets", name, len(png))
	}
	file := filepath.Join(cluster.Root, "docs/pictures", name)
	if *update {
		if err := os.WriteFile(file, png, 0o644); err != nil {
			t.Error(err)
		}
		return
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("%v: run with -args -update", err)
	}
}
