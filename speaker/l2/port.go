package l2

import "context"

// port is an interface in use: a responder for each family in use, and one schedule that paces their frames.
type port struct {
	link       link
	schedule   *schedule
	responders [families]*responder
	stop       context.CancelFunc
}

// open returns the responder of a link for a family, and creates it if there is none. It must be called in the network
// namespace of the interface.
func (a *Announcer) open(l link, family int) (*responder, error) {
	p := a.ports[l.index]
	if p != nil && p.responders[family] != nil {
		r := p.responders[family]
		r.router.Store(r.socket.router())
		return r, nil
	}
	r, err := a.listen(l, family)
	if err != nil {
		return nil, err
	}
	r.router.Store(r.socket.router())
	if p == nil {
		ctx, stop := context.WithCancel(context.Background())
		p = &port{link: l, schedule: newSchedule(a.cfg.Refresh, a.cfg.Rate), stop: stop}
		a.ports[l.index] = p
		a.serving.Go(func() { p.schedule.run(ctx) })
	}
	p.responders[family] = r
	a.serving.Go(r.serve)
	return r, nil
}

// opened returns the responder of a link for a family if there is one.
func (a *Announcer) opened(l link, family int) (*responder, error) {
	if p := a.ports[l.index]; p != nil {
		return p.responders[family], nil
	}
	return nil, nil
}

// dropUnused closes responders without duties, and ports whose interface has changed.
func (a *Announcer) dropUnused(sets map[int]*[families]duties) {
	for index, p := range a.ports {
		set := sets[index]
		if set == nil || !a.has(p.link) {
			p.close()
			delete(a.ports, index)
			continue
		}
		for family, r := range p.responders {
			if r != nil && (r.broken.Load() || len(set[family].held)+len(set[family].watched) == 0) {
				p.drop(r)
				p.responders[family] = nil
			}
		}
		if p.responders == ([families]*responder{}) {
			p.close()
			delete(a.ports, index)
		}
	}
}

func (a *Announcer) has(l link) bool {
	for _, m := range a.network.links {
		if l.same(m) {
			return true
		}
	}
	return false
}

// drop closes a responder. It sends nothing after that.
func (p *port) drop(r *responder) {
	d := *r.duties.Load()
	r.close()
	for addr := range d.all() {
		p.schedule.stop(binding{on: r, addr: addr})
	}
}

func (p *port) close() {
	for _, r := range p.responders {
		if r != nil {
			p.drop(r)
		}
	}
	p.stop()
}
