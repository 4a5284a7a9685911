package deps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// term is a retired word: it must not appear as a word of text or of an identifier, in any file of the repository.
type term struct {
	// words is a regular expression of whole words in lower case.
	words string
	// use is what to write instead.
	use string
	// standard is a regular expression of expressions with one of the words in a standard meaning.
	standard string
}

// terms are the retired words. Words that also have a standard meaning are covered by the expressions of the retired
// one. docs/glossary.md defines the project's own terms.
var terms = []term{
	{words: "told|says?|said|saying|tells?|telling|tellers?", use: "report, publish, send, advertise, log"},
	{words: "hears?|heard|unheard|hearing|ears?|deaf|deafen", use: "receive, reachable; asymmetric link"},
	{words: "kicks?|kicked", use: "trigger, wake"},
	{words: "looks?|looked", use: "observe, list, inspect", standard: `look path`}, // exec.LookPath
	{words: "nobody|somebody|everybody|whoever|whom", use: "a noun: no node, another host, each client",
		standard: `nobody x 65534 65534 nobody`}, // /etc/passwd
	{words: "strangers?", use: "foreign"},
	{words: "mends?|mended", use: "fix, repair, remediation"},
	{words: "reuse values", use: "--reset-then-reuse-values: it has the defaults of new values", standard: `reset then reuse values`},
	{words: "anew", use: "re-announce, retry, rebuild"},
	{words: "judges?|judged", use: "evaluate"},
	{words: "notes?|noted", use: "record, observe; document, remark", standard: `release notes?`},
	{words: "ought|owed|suffers?|of which|by which|at night", use: "another sentence"},
	{words: "who decides|who speaks|whose it is", use: "reconcile loop, BGP daemon, owner"},
	{words: "whole", use: "full, complete"},
	{words: "word", use: "message, state, field"},
	{words: "goes", use: "is decommissioning, is deleted, is sent, reaches", standard: `goes down`}, // of a link or session
	{words: "leaving nodes?|nodes? leaving", use: "decommissioning (of a node), stopping (of a speaker)"},
	{words: "beats?", use: "heartbeat"},
	{words: "turns?|turned", use: "tick, rank, change"},
	{words: "takes? its place|place in the list", use: "replace, rank"},
	{words: "rest of (an|the) address", use: "cool-down"},
	{words: "hard|soft", use: "blocker, release reason",
		standard: `hard links?|eviction hard|soft true`}, // of the kubelet, and of GoBGP's ResetPeerRequest
	{words: "gains?|gained|tenure", use: "tryAcquire, improvement, ownership"},
	{words: "leftovers?|remains", use: "residual state"},
	{words: "walls?", use: "terminal rule"},
	{words: "admits?|admitted", use: "accept"},
	{words: "stands?|stood", use: "stalls; persists; means; replaces"},
	{words: "forgetful|forgets?|forgotten|remembers?|remembered|remembering", use: "affinity, record, delete",
		standard: `(queue|limiter) forget`}, // of client-go's workqueue
	{words: "former|formerly", use: "previous, previously managed"},
	{words: "quiet|hush|hushed|wakers?|advisers?", use: "filtered client, suppressed, requeuer, warnings; idle",
		standard: `console tty s0 quiet`}, // the kernel's command line
	{words: "drifts?|drifted", use: "divergence"},
	{words: "rehomes?|rehomed|rehoming", use: "reallocate"},
	{words: "crowds?", use: "connection limiter"},
	{words: "deciding", use: "election"},
	{words: "speaks?|spoken", use: "announce; run BGP"},
	{words: "beside", use: "alongside, in addition to, compared with"},
	{words: "everyone", use: "AllTraffic"},
}

// exempt are the files with text of others, and this one.
var exempt = regexp.MustCompile(`^LICENSE$|(^|/)go\.sum$|^test/deps/vocabulary_test\.go$` +
	`|^speaker/kubeproxy/testdata/|/testdata/captured/`) // output of kube-proxy and of tcpdump

// TestVocabulary: no file contains a retired word, in text or within an identifier.
func TestVocabulary(t *testing.T) {
	rules := compile()
	for file, text := range tracked(t) {
		if exempt.MatchString(file) {
			continue
		}
		for i, line := range strings.Split(text, "\n") {
			for _, problem := range rules.check(line) {
				t.Errorf("%s:%d: %s", file, i+1, problem)
			}
		}
	}
}

// TestVocabularyBites: the check finds words in text and in identifiers, and accepts standard expressions.
func TestVocabularyBites(t *testing.T) {
	rules := compile()
	for line, want := range map[string]int{
		"a node that nobody hears":         2,
		"func (s *Speaker) onKick() {":     1,
		"the_whole_list":                   1,
		"of Which":                         1,
		"body: http.NoBody":                0,
		"look up the route":                1,
		`exec.LookPath("nft")`:             0,
		"look at the route":                1,
		"the BFD session goes down":        0,
		"password":                         0,
		"c.queue.Forget(key); forget(key)": 1,
		"the TURN server":                  1,
		"toldYouSo, HTTPSays":              2,
	} {
		if got := rules.check(line); len(got) != want {
			t.Errorf("%q: got %q, want %d", line, got, want)
		}
	}
}

// vocabulary is the compiled form of terms.
type vocabulary struct {
	all   *regexp.Regexp // any of the words
	words []*regexp.Regexp
	// standard are the standard expressions, nil for none.
	standard []*regexp.Regexp
}

func compile() vocabulary {
	whole := func(words string) *regexp.Regexp { return regexp.MustCompile(`\b(?:` + words + `)\b`) }
	var v vocabulary
	var all []string
	for _, term := range terms {
		all = append(all, term.words)
		v.words = append(v.words, whole(term.words))
		var standard *regexp.Regexp
		if term.standard != "" {
			standard = whole(term.standard)
		}
		v.standard = append(v.standard, standard)
	}
	v.all = whole(strings.Join(all, "|"))
	return v
}

// check returns the retired words of a line.
func (v vocabulary) check(line string) (problems []string) {
	text := split(line)
	if !v.all.MatchString(text) {
		return nil
	}
	for i, term := range terms {
		rest := text
		if v.standard[i] != nil {
			rest = v.standard[i].ReplaceAllString(rest, "-")
		}
		for _, found := range v.words[i].FindAllString(rest, -1) {
			problems = append(problems, fmt.Sprintf("%q is retired: use %s", found, term.use))
		}
	}
	return problems
}

var (
	camel     = regexp.MustCompile(`([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])`)
	noLetters = regexp.MustCompile(`[^a-z0-9]+`)
)

// split returns the words of text and of the identifiers in it, in lower case, with one space between them.
func split(line string) string {
	return noLetters.ReplaceAllString(strings.ToLower(camel.ReplaceAllString(line, "$1$3 $2$4")), " ")
}

// tracked returns the text files of the repository, by their path.
func tracked(t *testing.T) map[string]string {
	t.Helper()
	out, err := exec.Command("git", "-C", "../..", "ls-files", "-z").Output()
	if err != nil {
		t.Skipf("no git repository: %v", err)
	}
	files := map[string]string{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join("../..", name))
		switch {
		case errors.Is(err, fs.ErrNotExist): // deleted and not committed yet
		case err != nil:
			t.Fatal(err)
		case utf8.Valid(text):
			files[name] = string(text)
		}
	}
	if len(files) < 100 {
		t.Fatalf("got %d files, want the repository", len(files))
	}
	return files
}
