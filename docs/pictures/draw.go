package main

import (
	"encoding/xml"
	"fmt"
	"strings"
)

// style has the colours of GitHub's light theme, and of its dark theme where the reader prefers that. The background is
// drawn, so the text is legible on a page of either theme.
const style = `text{font:14px system-ui,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}
.title{font-size:17px;font-weight:600}
.soft{fill:#59636e;font-size:13px}
.page{fill:#ffffff}
.box{fill:#f6f8fa;stroke:#818b98}
.part{fill:#ffffff;stroke:#818b98}
.owner{fill:#ddf4ff;stroke:#0969da}
.line{stroke:#59636e;fill:none;stroke-width:1.5}
.way{stroke:#0969da;fill:none;stroke-width:2.5}
.back{stroke:#1a7f37;fill:none;stroke-width:2.5;stroke-dasharray:7 4}
.dot{fill:#0969da}
.dotback{fill:#1a7f37}
.onway{fill:#ffffff;font-size:12px;font-weight:600}
.bar{fill:#0969da}
.longest{fill:#0969da;opacity:.35}
.other{fill:#818b98}
.otherlongest{fill:#818b98;opacity:.45}
@media (prefers-color-scheme:dark){
text{fill:#f0f6fc}
.soft{fill:#9198a1}
.page{fill:#0d1117}
.box{fill:#151b23;stroke:#656c76}
.part{fill:#212830;stroke:#656c76}
.owner{fill:#121d2f;stroke:#4493f8}
.line{stroke:#9198a1}
.way{stroke:#4493f8}
.back{stroke:#3fb950}
.dot{fill:#4493f8}
.dotback{fill:#3fb950}
.onway{fill:#0d1117}
.bar,.longest{fill:#4493f8}
}`

// picture is an SVG in progress.
type picture struct {
	width, height int
	title, about  string
	body          strings.Builder
}

func (p *picture) String() string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" role="img" aria-labelledby="t d">
<title id="t">%[3]s</title>
<desc id="d">%[4]s</desc>
<style>
%[5]s
</style>
<defs>
<marker id="end" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" markerUnits="userSpaceOnUse" orient="auto-start-reverse"><path class="dot" d="M0 0 10 5 0 10z"/></marker>
<marker id="endback" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" markerUnits="userSpaceOnUse" orient="auto-start-reverse"><path class="dotback" d="M0 0 10 5 0 10z"/></marker>
<marker id="endline" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" markerUnits="userSpaceOnUse" orient="auto-start-reverse"><path class="other" d="M0 0 10 5 0 10z"/></marker>
</defs>
<rect class="page" width="%[1]d" height="%[2]d" rx="8"/>
<text class="title" x="20" y="32">%[3]s</text>
%[6]s</svg>
`, p.width, p.height, escaped(p.title), escaped(p.about), style, p.body.String())
}

func escaped(s string) string {
	var out strings.Builder
	_ = xml.EscapeText(&out, []byte(s)) // a strings.Builder returns no error
	return out.String()
}

func (p *picture) text(x, y int, class, s string) {
	fmt.Fprintf(&p.body, "<text class=%q x=\"%d\" y=\"%d\">%s</text>\n", class, x, y, escaped(s))
}

func (p *picture) rect(x, y, width, height int, class string) {
	fmt.Fprintf(&p.body, "<rect class=%q x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"6\"/>\n", class, x, y, width, height)
}

// box draws a rectangle with lines of text, the first one in black, the others soft.
func (p *picture) box(x, y, width, height int, class string, lines ...string) {
	p.rect(x, y, width, height, class)
	for i, line := range lines {
		text := "soft"
		if i == 0 {
			text = "name"
		}
		p.text(x+12, y+22+i*18, text, line)
	}
}

// markers has the end of each kind of line.
var markers = map[string]string{"way": "end", "back": "endback", "line": "endline"}

// path draws a line through points "x,y x,y ..." with an arrow at its end, for kind "line" at both ends.
func (p *picture) path(kind, points string) {
	start := ""
	if kind == "line" {
		start = ` marker-start="url(#endline)"`
	}
	fmt.Fprintf(&p.body, "<polyline class=%q points=%q marker-end=\"url(#%s)\"%s/>\n", kind, points, markers[kind], start)
}

// step draws the number of a step on a line of kind "way" or "back".
func (p *picture) step(x, y int, kind, number string) {
	class := map[string]string{"way": "dot", "back": "dotback"}[kind]
	fmt.Fprintf(&p.body, "<circle class=%q cx=\"%d\" cy=\"%d\" r=\"10\"/>\n", class, x, y)
	fmt.Fprintf(&p.body, "<text class=\"onway\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x, y+4, number)
}
