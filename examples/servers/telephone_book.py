"""An MCP server with one tool, over standard input and output; examples/mcp_tools.py mounts it."""

from mcp.server import MCPServer

BOOK = {name: str(200 + 37 * i) for i, name in enumerate(("Ada", "Bo", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hope"))}
server = MCPServer("telephone book", log_level="CRITICAL")


@server.tool()
def number_of(name: str) -> str:
    """the telephone number of a person."""
    return BOOK.get(name, "there is no such person")


if __name__ == "__main__":
    server.run()
