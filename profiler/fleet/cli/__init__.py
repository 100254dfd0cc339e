"""Commands of the agent and the server. pyprof.cli.main loads them by name.

agent                 `pyprof agent`: record what rules choose, for as long as the machine runs, and keep it in a spool
agent_administration  `pyprof agent install`, `status` and `resend`
agent_record          `pyprof agent record`: request a recording from a running agent
demo_fleet            `pyprof demo-fleet`: a server, an agent and two services, to try the page with real data
query                 `pyprof query`: what the agent's spool says about a span of time
server                `pyprof server`: receive and store windows of agents, answer queries, and serve a page
"""
